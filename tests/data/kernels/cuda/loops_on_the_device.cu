#include "relu.cuh"

static __global__ void forever(volatile float *out) { while (out[0] != 12345.0f) { } }

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    forever<<<1, 32>>>(call_of(args, n).out);
    return 0;
}
