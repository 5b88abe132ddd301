/* torch.nn.functional.layer_norm: (x - mean) / sqrt(variance + eps) * weight + bias over the last axes.
 *
 * input, normalized_shape (1-D int64), weight or None, bias or None, eps | output
 *
 * Takes floats. Mean and (biased) variance are computed in double, in two passes. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *normalized = opt_tensor(args, n, 1);
    const OptTensor *weight = opt_tensor(args, n, 2);
    const OptTensor *bias = opt_tensor(args, n, 3);
    double eps = opt_number(args, n, 4, 1e-5);
    const OptTensor *output = opt_tensor(args, n, 5);
    if (n != 6 || !input || !normalized || !output || normalized->ndim != 1 || !opt_same_shape(input, output))
        return OPT_BAD_ARGUMENTS;
    int axes = (int)normalized->shape[0];
    int outer = input->ndim - axes;
    if (outer < 0 || (weight && weight->ndim != axes) || (bias && bias->ndim != axes))
        return OPT_BAD_ARGUMENTS;
    if (!opt_is_float(opt_kind(input)) || !opt_is_float(opt_kind(output)))
        return OPT_UNSUPPORTED;
    int64_t rows = 1, width = 1;
    for (int axis = 0; axis < outer; axis++)
        rows *= input->shape[axis];
    for (int axis = outer; axis < input->ndim; axis++) {
        if (input->shape[axis] != opt_load_exact(normalized, (axis - outer) * normalized->strides[0]))
            return OPT_BAD_ARGUMENTS;
        width *= input->shape[axis];
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = opt_offset_of_axes(input, 0, outer, row);
        int64_t to = opt_offset_of_axes(output, 0, outer, row);
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < width; i++)
            sum += opt_load(input, from + opt_offset_of_axes(input, outer, input->ndim, i));
        double mean = sum / (double)width;
        for (int64_t i = 0; i < width; i++) {
            double distance = opt_load(input, from + opt_offset_of_axes(input, outer, input->ndim, i)) - mean;
            squares += distance * distance;
        }
        double scale = 1 / sqrt(squares / (double)width + eps);
        for (int64_t i = 0; i < width; i++) {
            double value = (opt_load(input, from + opt_offset_of_axes(input, outer, input->ndim, i)) - mean) * scale;
            if (weight)
                value *= opt_load(weight, opt_offset(weight, i));
            if (bias)
                value += opt_load(bias, opt_offset(bias, i));
            opt_store(output, to + opt_offset_of_axes(output, outer, output->ndim, i), value);
        }
    }
    return OPT_OK;
}
