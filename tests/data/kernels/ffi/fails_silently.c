#include "relu.h"

OPT_EXPORT int __tvm_ffi_run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    return ffi_relu(args, n) + 7;
}
