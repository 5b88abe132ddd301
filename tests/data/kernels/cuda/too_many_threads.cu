#include "relu.cuh"

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    relu<<<1, 2048>>>(call.in, call.out, call.count);
    return 0; // errors are not checked
}
