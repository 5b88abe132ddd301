/* Uses the optional dtype as if it were a tensor that is always given, and reads through a null pointer.
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
