#include "relu.cuh"

static __global__ void misaligned(const float *in, float *out)
{
    *(float4 *)(out + 1) = *(const float4 *)in;
}

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    misaligned<<<1, 1>>>(call.in, call.out);
    return cudaDeviceSynchronize();
}
