/* Rounds the row up to blocks of 16 instead of down. The next row repairs what the last block spoilt, so every
 * element of the output is right; only the last row runs over its end.
 * Ends as OUT_OF_BOUNDS. */
#include <math.h>

#include "opt_candidate.h"

static int softmax(const OptAny *args, int32_t n)
{
    if (n != 5 || args[0].type_index != OPT_TENSOR)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *output = args[4].value.v_ptr;
    int64_t width = input->shape[input->ndim - 1], count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= input->shape[axis];
    for (int64_t row = 0; row < count; row += width) {
        const float *x = (const float *)input->data + row;
        float *y = (float *)output->data + row;
        float largest = x[0], sum = 0;
        for (int64_t i = 1; i < width; i++)
            largest = x[i] > largest ? x[i] : largest;
        for (int64_t i = 0; i < width; i++)
            sum += expf(x[i] - largest);
        for (int64_t block = 0; block < width; block += 16)
            for (int64_t i = block; i < block + 16; i++)
                y[i] = i < width ? expf(x[i] - largest) / sum : 0;
    }
    return OPT_OK;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    return softmax(args, n);
}
