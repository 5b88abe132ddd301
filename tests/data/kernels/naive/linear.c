/* torch.nn.functional.linear: output[..., o] = sum_k input[..., k] * weight[o, k] + bias[o].
 *
 * input, weight, bias or None | output
 *
 * Takes floats. Sums are computed in double and rounded once. As in torch, a one-axis weight gives one number per row. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *weight = opt_tensor(args, n, 1);
    const OptTensor *bias = opt_tensor(args, n, 2);
    const OptTensor *output = opt_tensor(args, n, 3);
    if (n != 4 || !input || !weight || !output || input->ndim < 1 || weight->ndim < 1 || weight->ndim > 2)
        return OPT_BAD_ARGUMENTS;
    if (!opt_is_float(opt_kind(input)) || !opt_is_float(opt_kind(weight)) || !opt_is_float(opt_kind(output)))
        return OPT_UNSUPPORTED;
    int last = input->ndim - 1;
    int64_t depth = input->shape[last];
    int64_t width = weight->ndim == 2 ? weight->shape[0] : 1;
    int64_t weight_row = weight->ndim == 2 ? weight->strides[0] : 0;
    int64_t weight_step = weight->strides[weight->ndim - 1];
    int64_t output_step = weight->ndim == 2 ? output->strides[last] : 0;
    if (weight->shape[weight->ndim - 1] != depth || output->ndim != last + (weight->ndim == 2))
        return OPT_BAD_ARGUMENTS;
    int64_t rows = 1;
    for (int axis = 0; axis < last; axis++)
        rows *= input->shape[axis];
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = opt_offset_of_axes(input, 0, last, row);
        int64_t to = opt_offset_of_axes(output, 0, last, row);
        for (int64_t o = 0; o < width; o++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum += opt_load(input, from + k * input->strides[last]) *
                       opt_load(weight, o * weight_row + k * weight_step);
            if (bias)
                sum += opt_load(bias, bias->ndim ? o * bias->strides[0] : 0);
            opt_store(output, to + o * output_step, sum);
        }
    }
    return OPT_OK;
}
