#include "relu.cuh"

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    if (args[0].value.v_tensor->device.device_type != OPT_CUDA) return 1;
    Call call = call_of(args, n);
    if (call.count) relu<<<blocks(call.count), 64>>>(call.in, call.out, call.count);
    return cudaGetLastError();
}
