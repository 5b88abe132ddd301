/* Writes each row in whole blocks of 16, even past its end. The next row overwrites these elements, so the output is
 * right. Only the last row writes past the end of the output.
 * Ends as OUT_OF_BOUNDS. */
#include "softmax_rows.h"

static void row(const float *x, float *y, int64_t width)
{
    float largest = x[0], sum = 0;
    for (int64_t i = 1; i < width; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < width; i++)
        sum += expf(x[i] - largest);
    for (int64_t block = 0; block < width; block += 16)
        for (int64_t i = block; i < block + 16; i++)
            y[i] = i < width ? expf(x[i] - largest) / sum : 0;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    return each_row(args, n, row);
}
