#include "relu.cuh"

static __global__ void at_least(const float *in, const float *floors, float *out, long long count)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] < floors[i % 37] ? floors[i % 37] : in[i];
}

// Sets, copies and reuses memory before the launch.
OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    size_t bytes = call.count * sizeof(float);
    float zeros[37] = {}, *floors, *copy;
    for (int round = 0; round < 300; round++) {
        if (cudaMalloc(&copy, bytes)) return 2;
        if (cudaMemset(copy, 0x7f, bytes) || cudaFree(copy)) return 3;
    }
    if (cudaMalloc(&copy, bytes) || cudaMalloc(&floors, sizeof zeros)) return 4;
    if (cudaMemset(floors, 0x7f, sizeof zeros)) return 5;
    if (cudaMemcpy(floors, zeros, sizeof zeros, cudaMemcpyHostToDevice)) return 6;
    // The first element is copied by itself, so the rest does not begin at a multiple of 16 bytes.
    if (cudaMemcpyAsync(copy, call.in, sizeof(float), cudaMemcpyDeviceToDevice)) return 7;
    if (cudaMemcpyAsync(copy + 1, call.in + 1, bytes - sizeof(float), cudaMemcpyDeviceToDevice)) return 8;
    at_least<<<blocks(call.count), 64>>>(copy, floors, call.out, call.count);
    return cudaFree(copy) || cudaFree(floors);
}
