/* What most of the kernels in this folder share, each of which has one mistake: the softmax of a row, and a loop over
 * the rows of a contiguous float32 tensor.
 * input, dim, _stacklevel, dtype or None | output */
#include <math.h>

#include "opt_candidate.h"

/* exp(x - max) / sum. */
static inline void right_row(const float *x, float *y, int64_t width)
{
    float largest = x[0], sum = 0;
    for (int64_t i = 1; i < width; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < width; i++)
        sum += y[i] = expf(x[i] - largest);
    for (int64_t i = 0; i < width; i++)
        y[i] /= sum;
}

static inline int each_row(const OptAny *args, int32_t n, void (*row)(const float *x, float *y, int64_t width))
{
    if (n != 5 || args[0].type_index != OPT_TENSOR)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *output = args[4].value.v_ptr;
    int64_t width = input->shape[input->ndim - 1], count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= input->shape[axis];
    for (int64_t at = 0; at < count; at += width)
        row((const float *)input->data + at, (float *)output->data + at, width);
    return OPT_OK;
}
