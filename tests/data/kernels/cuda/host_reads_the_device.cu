#include "relu.cuh"

// Host code uses addresses of the device, which fails on a card.
OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    for (long long i = 0; i < call.count; i++) call.out[i] = call.in[i] < 0.0f ? 0.0f : call.in[i];
    return 0;
}
