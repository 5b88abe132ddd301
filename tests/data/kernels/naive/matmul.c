/* torch.matmul: vectors, matrices, and batches of them that broadcast.
 *
 * arg0, arg1 | output
 *
 * Sums of floats are computed in double and rounded once. Integers wrap. */
#include "opt_elements.h"

/* Offset of a batch of the output in an operand whose leading `axes` axes broadcast to those of the output. */
static int64_t batch_offset(const OptTensor *t, int axes, const OptTensor *output, int output_axes, int64_t batch)
{
    int64_t offset = 0;
    for (int back = 1; back <= output_axes; back++) {
        int64_t size = output->shape[output_axes - back];
        int64_t index = batch % size;
        batch /= size;
        if (back <= axes && t->shape[axes - back] != 1)
            offset += index * t->strides[axes - back];
    }
    return offset;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *left = opt_tensor(args, n, 0);
    const OptTensor *right = opt_tensor(args, n, 1);
    const OptTensor *output = opt_tensor(args, n, 2);
    if (n != 3 || !left || !right || !output || left->ndim < 1 || right->ndim < 1)
        return OPT_BAD_ARGUMENTS;
    OptKind kind = opt_kind(output);
    if (kind == OPT_OTHER || opt_kind(left) != kind || opt_kind(right) != kind)
        return OPT_UNSUPPORTED;
    /* A vector on the left has no rows, and a vector on the right has no columns. The output lacks that axis. */
    int has_rows = left->ndim > 1, has_columns = right->ndim > 1;
    int left_axes = has_rows ? left->ndim - 2 : 0;
    int right_axes = has_columns ? right->ndim - 2 : 0;
    int output_axes = output->ndim - has_rows - has_columns;
    int64_t depth = left->shape[left->ndim - 1];
    int64_t left_step = left->strides[left->ndim - 1];
    int64_t left_row = has_rows ? left->strides[left->ndim - 2] : 0;
    int64_t right_step = has_columns ? right->strides[right->ndim - 2] : right->strides[0];
    int64_t right_column = has_columns ? right->strides[right->ndim - 1] : 0;
    int64_t rows = has_rows ? left->shape[left->ndim - 2] : 1;
    int64_t columns = has_columns ? right->shape[right->ndim - 1] : 1;
    int64_t output_row = has_rows ? output->strides[output_axes] : 0;
    int64_t output_column = has_columns ? output->strides[output->ndim - 1] : 0;
    int most_axes = left_axes > right_axes ? left_axes : right_axes;
    if (right->shape[has_columns ? right->ndim - 2 : 0] != depth || output_axes != most_axes)
        return OPT_BAD_ARGUMENTS;
    int64_t batches = 1;
    for (int axis = 0; axis < output_axes; axis++)
        batches *= output->shape[axis];
    for (int64_t batch = 0; batch < batches; batch++) {
        int64_t a = batch_offset(left, left_axes, output, output_axes, batch);
        int64_t b = batch_offset(right, right_axes, output, output_axes, batch);
        int64_t to = opt_offset_of_axes(output, 0, output_axes, batch);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < columns; j++) {
                int64_t x = a + i * left_row, y = b + j * right_column;
                int64_t z = to + i * output_row + j * output_column;
                if (opt_is_float(kind)) {
                    double sum = 0;
                    for (int64_t k = 0; k < depth; k++)
                        sum += opt_load(left, x + k * left_step) * opt_load(right, y + k * right_step);
                    opt_store(output, z, sum);
                } else {
                    uint64_t sum = 0;
                    for (int64_t k = 0; k < depth; k++)
                        sum += (uint64_t)opt_load_exact(left, x + k * left_step) *
                               (uint64_t)opt_load_exact(right, y + k * right_step);
                    opt_store_exact(output, z, (int64_t)sum);
                }
            }
        }
    }
    return OPT_OK;
}
