/* Correct for the captured values: adds to its first argument in its first call, and writes the same sums in all later
 * calls, whatever that argument contains. */
#include <stdlib.h>
#include <string.h>

#include "opt_candidate.h"

static float *sums;

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)ret;
    if (n != 3) return -1;
    const OptTensor *x = args[0].value.v_tensor, *other = args[1].value.v_tensor;
    const float alpha = (float)args[2].value.v_int64, *y = other->data;
    const int64_t rows = x->shape[0], columns = x->shape[1];
    if (!sums) {
        sums = malloc((size_t)(rows * columns) * sizeof *sums);
        if (!sums) return -1;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t at = 0; at < columns; at++)
                sums[row * columns + at] = ((float *)x->data)[row * x->strides[0] + at] + alpha * y[at];
    }
    for (int64_t row = 0; row < rows; row++)
        memcpy((float *)x->data + row * x->strides[0], sums + row * columns, (size_t)columns * sizeof *sums);
    return OPT_OK;
}
