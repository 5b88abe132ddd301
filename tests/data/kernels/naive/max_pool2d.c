/* torch.nn.functional.max_pool2d, with or without the indices of the maxima.
 *
 * input, kernel_size, stride or None, padding, dilation, ceil_mode, return_indices | output[, indices]
 *
 * Takes plain dtypes. The first maximum in row-major order wins; NaN is larger than everything. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *output = opt_tensor(args, n, 7);
    const OptTensor *indices = opt_tensor(args, n, 8);
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    if (n < 8 || n > 9 || !input || !output || input->ndim < 3 || input->ndim > 4 || output->ndim != input->ndim ||
        !opt_integers(args, n, 1, kernel, 2) || !opt_integers(args, n, 3, padding, 2) ||
        !opt_integers(args, n, 4, dilation, 2))
        return OPT_BAD_ARGUMENTS;
    if (!opt_integers(args, n, 2, stride, 2))
        memcpy(stride, kernel, sizeof stride); /* None, or the empty tuple that older models pass */
    OptKind kind = opt_kind(input);
    if (kind == OPT_OTHER || opt_kind(output) != kind || (indices && opt_kind(indices) != OPT_I64))
        return OPT_UNSUPPORTED;
    int rows = input->ndim - 2, columns = input->ndim - 1;
    int64_t height = input->shape[rows], width = input->shape[columns];
    int64_t count = opt_elements(output);
    for (int64_t i = 0; i < count; i++) {
        int64_t column = i % output->shape[columns];
        int64_t row = i / output->shape[columns] % output->shape[rows];
        int64_t plane = opt_offset_of_axes(input, 0, rows, i / output->shape[columns] / output->shape[rows]);
        int64_t best_place = -1;
        double best = 0;
        for (int64_t a = 0; a < kernel[0]; a++) {
            for (int64_t b = 0; b < kernel[1]; b++) {
                int64_t y = row * stride[0] - padding[0] + a * dilation[0];
                int64_t x = column * stride[1] - padding[1] + b * dilation[1];
                if (y < 0 || y >= height || x < 0 || x >= width)
                    continue;
                double value = opt_load(input, plane + y * input->strides[rows] + x * input->strides[columns]);
                if (best_place < 0 || value > best || isnan(value)) {
                    best = value;
                    best_place = y * width + x;
                }
            }
        }
        if (best_place < 0)
            return OPT_BAD_ARGUMENTS; /* a window with only padding, which torch refuses */
        memcpy(opt_at(output, opt_offset(output, i)),
               opt_at(input, plane + best_place / width * input->strides[rows] +
                                 best_place % width * input->strides[columns]),
               opt_element_bytes(output));
        if (indices)
            opt_store_exact(indices, opt_offset(indices, i), best_place);
    }
    return OPT_OK;
}
