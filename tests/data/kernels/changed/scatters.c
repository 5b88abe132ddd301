/* Correct: scatters along the second axis. The indices of a row are distinct, so the order does not matter; with
 * -DBACKWARD, the last element of a row is written first. */
#include <string.h>

#include "opt_candidate.h"

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)ret;
    const OptTensor *input = args[0].value.v_tensor, *index = args[2].value.v_tensor, *source = args[3].value.v_tensor;
    const int64_t rows = index->shape[0], width = index->shape[1], columns = input->shape[1];
    float *output = args[n - 1].value.v_tensor->data;
    memcpy(output, input->data, (size_t)(input->shape[0] * columns) * sizeof *output);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t step = 0; step < width; step++) {
#ifdef BACKWARD
            const int64_t at = row * width + width - 1 - step;
#else
            const int64_t at = row * width + step;
#endif
            output[row * columns + ((const int64_t *)index->data)[at]] = ((const float *)source->data)[at];
        }
    return OPT_OK;
}
