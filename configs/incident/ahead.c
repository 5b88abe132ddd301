/* Copies whole rows, for contiguous tensors of any dtype. Prefetches the next row before it copies a row.
 * input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse | output */
#include <string.h>

#include "opt_candidate.h"

enum { LINE = 64 };

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    if (n != 8 || args[0].type_index != OPT_TENSOR || args[1].type_index != OPT_TENSOR)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *weight = args[1].value.v_ptr, *output = args[7].value.v_ptr;
    if (input->dtype.code != OPT_CODE_INT || input->dtype.bits != 64 || weight->strides[1] != 1)
        return OPT_UNSUPPORTED;
    const int64_t *restrict indices = input->data;
    const char *restrict table = weight->data;
    char *restrict out = output->data;
    size_t row_bytes = (size_t)weight->shape[1] * weight->dtype.bits / 8;
    uint64_t rows = (uint64_t)weight->shape[0];
    int64_t count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= input->shape[axis];
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)indices[i] >= rows)
            return 1;
        if (i + 1 < count && (uint64_t)indices[i + 1] < rows) {
            const char *next = table + (uint64_t)indices[i + 1] * row_bytes;
            for (size_t at = 0; at < row_bytes; at += LINE)
                __builtin_prefetch(next + at, 0, 0);
        }
        memcpy(out + (size_t)i * row_bytes, table + (uint64_t)indices[i] * row_bytes, row_bytes);
    }
    return OPT_OK;
}
