/* Wrong: leaves its first argument as it is. */
#include "opt_candidate.h"

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)args; (void)n; (void)ret;
    return OPT_OK;
}
