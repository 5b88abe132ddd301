#include "relu.cuh"

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    relu<<<blocks(call.count), 64>>>(call.in, call.out, call.count);
    cudaMemset((float *)call.in, 0, sizeof(float));
    return 0;
}
