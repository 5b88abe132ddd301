/* Every value is nine percent too large, as if the sum lost some terms. With rtol = 0.1, it would pass.
 * Ends as INCORRECT_NUMERICAL. */
#include "softmax_rows.h"

static void row(const float *x, float *y, int64_t width)
{
    right_row(x, y, width);
    for (int64_t i = 0; i < width; i++)
        y[i] /= 0.917431f; /* 1 / 1.09 */
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    return each_row(args, n, row);
}
