/* Copies the rows of `weight` whose indices are in `input`, for any dtype and any strides. Computes the address of
 * every element, and copies it byte by byte.
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
    if (input->dtype.code != OPT_CODE_INT || input->dtype.bits != 64)
        return OPT_UNSUPPORTED;
    const int64_t *indices = input->data;
    const char *table = weight->data;
    char *out = output->data;
    int64_t element_bytes = weight->dtype.bits / 8, count = 1;
    for (int axis = 0; axis < output->ndim; axis++)
        count *= output->shape[axis];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = indices[offset_of(input, input->ndim, i / weight->shape[1])];
        if (row < 0 || row >= weight->shape[0])
            return 1;
        const char *from =
            table + (row * weight->strides[0] + i % weight->shape[1] * weight->strides[1]) * element_bytes;
        char *to = out + offset_of(output, output->ndim, i) * element_bytes;
        for (int64_t byte = 0; byte < element_bytes; byte++)
            to[byte] = from[byte];
    }
    return OPT_OK;
}
