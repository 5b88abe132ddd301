/* Returns the right output, and leaves the running statistics as they are. */
#include "batch_norm.h"

static void unchanged(float *running, double found, double momentum)
{
    (void)running; (void)found; (void)momentum;
}

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    return batch_norm(args, unchanged);
}
