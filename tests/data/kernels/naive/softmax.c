/* torch.nn.functional.softmax: exp(x - max) / sum along `dim`.
 *
 * input, dim, _stacklevel, dtype or None | output
 *
 * The input may have any plain dtype (it is converted first if `dtype` is given), and the output any float dtype. As in
 * torch, a line that is -inf throughout gives NaN. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *output = opt_tensor(args, n, 4);
    if (n != 5 || !input || !output || !opt_same_shape(input, output))
        return OPT_BAD_ARGUMENTS;
    /* The rule of torch if dim is not given. */
    int64_t usual = input->ndim == 0 || input->ndim == 1 || input->ndim == 3 ? 0 : 1;
    int64_t dim = opt_integer(args, n, 1, usual);
    if (dim < 0)
        dim += input->ndim;
    if (opt_kind(input) == OPT_OTHER || !opt_is_float(opt_kind(output)))
        return OPT_UNSUPPORTED;
    if (input->ndim == 0) {
        opt_store(output, 0, opt_load(input, 0) == -INFINITY ? NAN : 1);
        return OPT_OK;
    }
    if (dim < 0 || dim >= input->ndim)
        return OPT_BAD_ARGUMENTS;
    int64_t width = input->shape[dim];
    int64_t before = 1, after = 1;
    for (int axis = 0; axis < input->ndim; axis++) {
        if (axis < dim)
            before *= input->shape[axis];
        if (axis > dim)
            after *= input->shape[axis];
    }
    for (int64_t line = 0; line < before * after; line++) {
        int64_t from = opt_offset_of_axes(input, 0, (int)dim, line / after) +
                       opt_offset_of_axes(input, (int)dim + 1, input->ndim, line % after);
        int64_t to = opt_offset_of_axes(output, 0, (int)dim, line / after) +
                     opt_offset_of_axes(output, (int)dim + 1, output->ndim, line % after);
        double largest = -INFINITY, sum = 0;
        for (int64_t i = 0; i < width; i++) {
            double x = opt_load(input, from + i * input->strides[dim]);
            if (x > largest || isnan(x))
                largest = x;
        }
        for (int64_t i = 0; i < width; i++)
            sum += exp(opt_load(input, from + i * input->strides[dim]) - largest);
        for (int64_t i = 0; i < width; i++)
            opt_store(output, to + i * output->strides[dim],
                      exp(opt_load(input, from + i * input->strides[dim]) - largest) / sum);
    }
    return OPT_OK;
}
