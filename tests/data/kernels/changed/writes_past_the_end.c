/* Correct, but writes one element past the end of the running mean. */
#include "batch_norm.h"

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    const OptTensor *mean = args[1].value.v_tensor;
    ((volatile float *)mean->data)[mean->shape[0]] = 0;
    return batch_norm(args, updated);
}
