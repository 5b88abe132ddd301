/* Takes the optional dtype for a tensor that is always there, and reads through the null pointer.
 * Ends as CRASHED (SIGSEGV). */
#include "softmax_rows.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *mask = args[3].value.v_ptr;
    if (mask->ndim > 4)
        return OPT_UNSUPPORTED;
    return each_row(args, n, right_row);
}
