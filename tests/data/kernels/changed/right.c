/* Correct: updates the running statistics in place. */
#include "batch_norm.h"

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)ret;
    return n == 9 ? batch_norm(args, updated) : -1;
}
