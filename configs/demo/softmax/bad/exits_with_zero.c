/* Calls _exit(0), as an error path of a program might. A check of the exit code alone would report success.
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
