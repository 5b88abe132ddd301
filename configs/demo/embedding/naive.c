/* Rows of `weight` that `input` names, element by element through the strides.
 * input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse | output */
#include "opt_candidate.h"

/* Offset, in elements, of the index-th element of the first `axes` axes in row-major order. */
static int64_t offset_of(const OptTensor *t, int axes, int64_t index)
{
    int64_t offset = 0;
    for (int axis = axes - 1; axis >= 0; axis--) {
        offset += index % t->shape[axis] * t->strides[axis];
        index /= t->shape[axis];
    }
    return offset;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    if (n != 8 || args[0].type_index != OPT_TENSOR || args[1].type_index != OPT_TENSOR)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *weight = args[1].value.v_ptr, *output = args[7].value.v_ptr;
    if (input->dtype.code != OPT_CODE_INT || input->dtype.bits != 64 || weight->dtype.code != OPT_CODE_FLOAT ||
        weight->dtype.bits != 32)
        return OPT_UNSUPPORTED;
    const int64_t *indices = input->data;
    const float *table = weight->data;
    float *out = output->data;
    int64_t count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= input->shape[axis];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = indices[offset_of(input, input->ndim, i)];
        if (row < 0 || row >= weight->shape[0])
            return 1;
        int64_t from = row * weight->strides[0], to = offset_of(output, input->ndim, i);
        for (int64_t column = 0; column < weight->shape[1]; column++)
            out[to + column * output->strides[input->ndim]] = table[from + column * weight->strides[1]];
    }
    return OPT_OK;
}
