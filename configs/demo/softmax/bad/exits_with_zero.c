/* Leaves by _exit(0), as a program's own error path does: whoever looks only at the exit code takes it for success.
 * Ends as CRASHED. */
#include <unistd.h>

#include "opt_candidate.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    (void)args;
    (void)n;
    _exit(0);
}
