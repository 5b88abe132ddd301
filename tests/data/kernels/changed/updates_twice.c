/* Returns the right output, and updates the running statistics twice. */
#include "batch_norm.h"

static void twice(float *running, double found, double momentum)
{
    updated(running, found, momentum);
    updated(running, found, momentum);
}

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    return batch_norm(args, twice);
}
