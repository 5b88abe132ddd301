#include <cuda_runtime.h>
#include "opt_candidate.h"

// C = A B with tiles in shared memory.
template <int TILE> static __global__ void matmul(const float *a, const float *b, float *c, int rows, int columns, int inner)
{
    __shared__ float of_a[TILE][TILE], of_b[TILE][TILE];
    int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    float sum = 0.0f;
    for (int tile = 0; tile < inner; tile += TILE) {
        int k = tile + threadIdx.x;
        of_a[threadIdx.y][threadIdx.x] = row < rows && k < inner ? a[row * inner + k] : 0.0f;
        k = tile + threadIdx.y;
        of_b[threadIdx.y][threadIdx.x] = k < inner && column < columns ? b[k * columns + column] : 0.0f;
        __syncthreads();
        for (k = 0; k < TILE; k++) sum += of_a[threadIdx.y][k] * of_b[k][threadIdx.x];
        __syncthreads();
    }
    if (row < rows && column < columns) c[row * columns + column] = sum;
}

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    const OptTensor *a = args[0].value.v_tensor, *b = args[1].value.v_tensor;
    OptTensor *c = args[n - 1].value.v_tensor;
    if (a->ndim != 2 || b->ndim != 2) return OPT_UNSUPPORTED;
    int rows = (int)a->shape[0], inner = (int)a->shape[1], columns = (int)b->shape[1];
    dim3 grid((columns + 7) / 8, (rows + 7) / 8), block(8, 8);
    matmul<8><<<grid, block>>>((const float *)a->data, (const float *)b->data, (float *)c->data, rows, columns, inner);
    return cudaGetLastError();
}
