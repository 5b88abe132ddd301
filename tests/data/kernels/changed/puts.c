/* Correct: `index_put` with two index tensors, whose pairs are distinct, so the order does not matter. With -DBACKWARD,
 * the last element is written first. */
#include <string.h>

#include "opt_candidate.h"

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)ret;
    const OptTensor *input = args[0].value.v_tensor, *row = args[1].value.v_tensor, *column = args[2].value.v_tensor;
    const float *values = args[3].value.v_tensor->data;
    float *output = args[n - 1].value.v_tensor->data;
    memcpy(output, input->data, (size_t)(input->shape[0] * input->shape[1]) * sizeof *output);
    for (int64_t step = 0; step < row->shape[0]; step++) {
#ifdef BACKWARD
        const int64_t at = row->shape[0] - 1 - step;
#else
        const int64_t at = step;
#endif
        output[((const int64_t *)row->data)[at] * input->shape[1] + ((const int64_t *)column->data)[at]] = values[at];
    }
    return OPT_OK;
}
