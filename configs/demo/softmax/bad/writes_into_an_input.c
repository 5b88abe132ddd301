/* Stores the exponentials in the input instead of a separate buffer. The output is right, but the caller's tensor has
 * changed.
 * Ends as INPUT_MUTATED. */
#include "softmax_rows.h"

static void row(const float *input, float *y, int64_t width)
{
    float *x = (float *)input;
    float largest = x[0], sum = 0;
    for (int64_t i = 1; i < width; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < width; i++)
        sum += x[i] = expf(x[i] - largest);
    for (int64_t i = 0; i < width; i++)
        y[i] = x[i] / sum;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    return each_row(args, n, row);
}
