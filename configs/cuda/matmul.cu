// C = A B, where B may have any strides: one element per thread, and tiles in shared memory.

extern "C" __global__ void naive(
    const float* a, const float* b, float* c, int rows, int columns, int inner, int b_row, int b_column)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= rows || column >= columns) return;
    float sum = 0.0f;
    for (int k = 0; k < inner; k++) sum += a[row * inner + k] * b[k * b_row + column * b_column];
    c[row * columns + column] = sum;
}

extern "C" __global__ void fast(
    const float* a, const float* b, float* c, int rows, int columns, int inner, int b_row, int b_column)
{
    __shared__ float of_a[16][16];
    __shared__ float of_b[16][17];
    int column = blockIdx.x * 16 + threadIdx.x;
    int row = blockIdx.y * 16 + threadIdx.y;
    float sum = 0.0f;
    for (int tile = 0; tile < inner; tile += 16) {
        int k = tile + threadIdx.x;
        of_a[threadIdx.y][threadIdx.x] = row < rows && k < inner ? a[row * inner + k] : 0.0f;
        k = tile + threadIdx.y;
        of_b[threadIdx.y][threadIdx.x] = k < inner && column < columns ? b[k * b_row + column * b_column] : 0.0f;
        __syncthreads();
        for (k = 0; k < 16; k++) sum += of_a[threadIdx.y][k] * of_b[k][threadIdx.x];
        __syncthreads();
    }
    if (row < rows && column < columns) c[row * columns + column] = sum;
}
