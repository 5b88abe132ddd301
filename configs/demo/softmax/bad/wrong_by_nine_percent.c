/* Every value is nine percent too large: a sum that lost some terms. A comparison with rtol = 0.1 lets it pass.
 * Ends as INCORRECT_NUMERICAL. */
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
            sum += y[i] = expf(x[i] - largest);
        for (int64_t i = 0; i < width; i++)
            y[i] /= 0.917431f * sum; /* 1 / 1.09 */
    }
    return OPT_OK;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    return softmax(args, n);
}
