/* Correct, but writes to the weight, which the call does not change. */
#include "batch_norm.h"

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    volatile float *weight = args[3].value.v_tensor->data;
    weight[0] = weight[0];
    return batch_norm(args, updated);
}
