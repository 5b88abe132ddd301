/* Writes each row in blocks of 16 and has no loop for the rest. If the width is not a multiple of 16, the last
 * elements of every row are not written.
 * Ends as UNWRITTEN_OUTPUT. */
#include "softmax_rows.h"

static void row(const float *x, float *y, int64_t width)
{
    float largest = x[0], sum = 0;
    for (int64_t i = 1; i < width; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < width; i++)
        sum += expf(x[i] - largest);
    for (int64_t block = 0; block + 16 <= width; block += 16)
        for (int64_t i = block; i < block + 16; i++)
            y[i] = expf(x[i] - largest) / sum;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    return each_row(args, n, row);
}
