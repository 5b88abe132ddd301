/* Raises an error whose message is longer than any message that is shown. */
#include "relu.h"

OPT_EXPORT int __tvm_ffi_run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    static char message[1 << 20];
    (void)self;
    (void)args;
    (void)n;
    (void)ret;
    for (unsigned i = 0; i + 1 < sizeof message; i++)
        message[i] = 'x';
    TVMFFIErrorSetRaisedFromCStr("LongError", message);
    return -1;
}
