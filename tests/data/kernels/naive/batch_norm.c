/* torch.nn.functional.batch_norm: (x - mean) / sqrt(variance + eps) * weight + bias by channel (axis 1).
 *
 * input, running_mean or None, running_var or None, weight or None, bias or None, training, momentum, eps | output
 *
 * Takes floats and computes in double. In training, torch also updates the running statistics. This kernel does not,
 * because the output does not depend on them and inputs must not be written. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *running_mean = opt_tensor(args, n, 1);
    const OptTensor *running_variance = opt_tensor(args, n, 2);
    const OptTensor *weight = opt_tensor(args, n, 3);
    const OptTensor *bias = opt_tensor(args, n, 4);
    int training = opt_integer(args, n, 5, 0) != 0;
    double eps = opt_number(args, n, 7, 1e-5);
    const OptTensor *output = opt_tensor(args, n, 8);
    if (n != 9 || !input || !output || input->ndim < 2 || !opt_same_shape(input, output) ||
        (!training && (!running_mean || !running_variance)))
        return OPT_BAD_ARGUMENTS;
    if (!opt_is_float(opt_kind(input)) || !opt_is_float(opt_kind(output)))
        return OPT_UNSUPPORTED;
    int64_t batches = input->shape[0], channels = input->shape[1], inner = 1;
    for (int axis = 2; axis < input->ndim; axis++)
        inner *= input->shape[axis];
    int64_t count = batches * inner;
    for (int64_t channel = 0; channel < channels; channel++) {
        double mean = 0, variance = 0;
        if (training) {
            for (int64_t i = 0; i < count; i++)
                mean += opt_load(input, i / inner * input->strides[0] + channel * input->strides[1] +
                                            opt_offset_of_axes(input, 2, input->ndim, i % inner));
            mean /= (double)count;
            for (int64_t i = 0; i < count; i++) {
                double distance = opt_load(input, i / inner * input->strides[0] + channel * input->strides[1] +
                                                      opt_offset_of_axes(input, 2, input->ndim, i % inner)) - mean;
                variance += distance * distance;
            }
            variance /= (double)count;
        } else {
            mean = opt_load(running_mean, channel * running_mean->strides[0]);
            variance = opt_load(running_variance, channel * running_variance->strides[0]);
        }
        double scale = 1 / sqrt(variance + eps);
        if (weight)
            scale *= opt_load(weight, channel * weight->strides[0]);
        double shift = bias ? opt_load(bias, channel * bias->strides[0]) : 0;
        for (int64_t i = 0; i < count; i++) {
            double x = opt_load(input, i / inner * input->strides[0] + channel * input->strides[1] +
                                           opt_offset_of_axes(input, 2, input->ndim, i % inner));
            opt_store(output, i / inner * output->strides[0] + channel * output->strides[1] +
                                  opt_offset_of_axes(output, 2, output->ndim, i % inner),
                      (x - mean) * scale + shift);
        }
    }
    return OPT_OK;
}
