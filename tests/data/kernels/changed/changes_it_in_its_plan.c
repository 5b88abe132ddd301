/* Updates the running statistics in its plan call too, where they are inputs. */
#include "batch_norm.h"

OPT_EXPORT int run_plan(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    updated(args[1].value.v_tensor->data, 1, 0.5);
    return OPT_OK;
}

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    return batch_norm(args, updated);
}
