/* Computes the result on the first call and does nothing on later calls, although every call has its own output.
 * It would pass a check of the first call alone, and would be the fastest kernel.
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
