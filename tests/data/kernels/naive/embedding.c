/* torch.nn.functional.embedding: the rows of `weight` whose indices are in `input`.
 *
 * input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse | output
 *
 * Takes any dtype, because rows are copied as bytes. padding_idx and the rest affect only the gradient. A capture of a
 * call with max_norm contains the weight after the call, so nothing has to be rescaled. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *weight = opt_tensor(args, n, 1);
    const OptTensor *output = opt_tensor(args, n, n - 1);
    if (n != 8 || !input || !weight || !output || weight->ndim != 2 || output->ndim != input->ndim + 1)
        return OPT_BAD_ARGUMENTS;
    if (!opt_is_integer(opt_kind(input)))
        return OPT_UNSUPPORTED;
    int64_t rows = weight->shape[0], width = weight->shape[1];
    size_t bytes = opt_element_bytes(weight);
    int64_t count = opt_elements(input);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = opt_load_exact(input, opt_offset(input, i));
        if (row < 0 || row >= rows)
            return OPT_BAD_ARGUMENTS;
        int64_t from = row * weight->strides[0];
        int64_t to = opt_offset_of_axes(output, 0, input->ndim, i);
        for (int64_t column = 0; column < width; column++)
            memcpy(opt_at(output, to + column * output->strides[input->ndim]),
                   opt_at(weight, from + column * weight->strides[1]), bytes);
    }
    return OPT_OK;
}
