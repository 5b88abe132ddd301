#include "relu.cuh"

static __global__ void writes_past_the_end(const float *in, float *out, long long count)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i <= count) out[i] = in[i < count ? i : 0] < 0.0f ? 0.0f : in[i < count ? i : 0];
}

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    writes_past_the_end<<<blocks(call.count + 1), 64>>>(call.in, call.out, call.count);
    return 0; // errors are not checked
}
