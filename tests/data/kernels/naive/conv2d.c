/* torch.nn.functional.conv2d: a cross-correlation, with groups.
 *
 * input, weight, bias or None, stride, padding (numbers, "same" or "valid"), dilation, groups | output
 *
 * Takes floats. Sums are computed in double and rounded once. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *weight = opt_tensor(args, n, 1);
    const OptTensor *bias = opt_tensor(args, n, 2);
    int64_t groups = opt_integer(args, n, 6, 1);
    const OptTensor *output = opt_tensor(args, n, 7);
    int64_t stride[2], padding[2] = {0, 0}, dilation[2];
    if (n != 8 || !input || !weight || !output || input->ndim < 3 || input->ndim > 4 || weight->ndim != 4 ||
        output->ndim != input->ndim || groups < 1 || !opt_integers(args, n, 3, stride, 2) ||
        !opt_integers(args, n, 5, dilation, 2))
        return OPT_BAD_ARGUMENTS;
    if (opt_is_string(args, n, 4, "same")) {
        for (int i = 0; i < 2; i++)
            padding[i] = dilation[i] * (weight->shape[2 + i] - 1) / 2; /* if odd, the extra one is at the end */
    } else if (!opt_is_string(args, n, 4, "valid") && !opt_integers(args, n, 4, padding, 2)) {
        return OPT_BAD_ARGUMENTS;
    }
    if (!opt_is_float(opt_kind(input)) || !opt_is_float(opt_kind(weight)) || !opt_is_float(opt_kind(output)))
        return OPT_UNSUPPORTED;
    int channels = input->ndim - 3, rows = input->ndim - 2, columns = input->ndim - 1;
    int64_t inputs_per_group = weight->shape[1], outputs_per_group = weight->shape[0] / groups;
    int64_t count = opt_elements(output);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i;
        int64_t column = rest % output->shape[columns];
        rest /= output->shape[columns];
        int64_t row = rest % output->shape[rows];
        rest /= output->shape[rows];
        int64_t channel = rest % output->shape[channels];
        int64_t image = channels == 1 ? rest / output->shape[channels] * input->strides[0] : 0;
        int64_t first_input = channel / outputs_per_group * inputs_per_group;
        double sum = 0;
        for (int64_t c = 0; c < inputs_per_group; c++) {
            for (int64_t a = 0; a < weight->shape[2]; a++) {
                for (int64_t b = 0; b < weight->shape[3]; b++) {
                    int64_t y = row * stride[0] - padding[0] + a * dilation[0];
                    int64_t x = column * stride[1] - padding[1] + b * dilation[1];
                    if (y < 0 || y >= input->shape[rows] || x < 0 || x >= input->shape[columns])
                        continue;
                    sum += opt_load(input, image + (first_input + c) * input->strides[channels] +
                                               y * input->strides[rows] + x * input->strides[columns]) *
                           opt_load(weight, channel * weight->strides[0] + c * weight->strides[1] +
                                                a * weight->strides[2] + b * weight->strides[3]);
                }
            }
        }
        if (bias)
            sum += opt_load(bias, channel * bias->strides[0]);
        opt_store(output, opt_offset(output, i), sum);
    }
    return OPT_OK;
}
