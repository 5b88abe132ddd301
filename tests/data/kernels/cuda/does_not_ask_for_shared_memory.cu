// Takes more than 48 KiB of shared memory without cudaFuncSetAttribute.
#include "relu.cuh"

static const int BYTES = 64 * 1024;

static __global__ void relu_through_shared(const float *in, float *out, long long count)
{
    extern __shared__ float values[];
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    // Use the last bytes, so that all of them must exist.
    float *mine = values + BYTES / sizeof(float) - blockDim.x + threadIdx.x;
    if (i < count) {
        *mine = in[i];
        out[i] = *mine < 0.0f ? 0.0f : *mine;
    }
}

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    relu_through_shared<<<blocks(call.count), 64, BYTES>>>(call.in, call.out, call.count);
    return 0;
}
