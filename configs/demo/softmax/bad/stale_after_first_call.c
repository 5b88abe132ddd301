/* Right on the first call, and then a "nothing to do" that forgets that every call has an output of its own.
 * Whoever checks only the first call finds it right, and in timing it is the fastest of all.
 * Ends as NONDETERMINISTIC. */
#include "softmax_rows.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    static int done;
    if (done)
        return OPT_OK;
    done = 1;
    return each_row(args, n, right_row);
}
