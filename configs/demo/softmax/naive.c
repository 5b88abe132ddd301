/* exp(x - max) / sum along `dim`, in double, through the strides.
 * input, dim, _stacklevel, dtype or None | output */
#include <math.h>

#include "opt_candidate.h"

/* Offset, in elements, of the index-th line along `dim`: all other axes, in row-major order. */
static int64_t line_offset(const OptTensor *t, int dim, int64_t index)
{
    int64_t offset = 0;
    for (int axis = t->ndim - 1; axis >= 0; axis--) {
        if (axis == dim)
            continue;
        offset += index % t->shape[axis] * t->strides[axis];
        index /= t->shape[axis];
    }
    return offset;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    if (n != 5 || args[0].type_index != OPT_TENSOR || args[1].type_index != OPT_INT)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *output = args[4].value.v_ptr;
    int dim = (int)(args[1].value.v_int64 < 0 ? args[1].value.v_int64 + input->ndim : args[1].value.v_int64);
    if (input->dtype.code != OPT_CODE_FLOAT || input->dtype.bits != 32 || args[3].type_index != OPT_NONE)
        return OPT_UNSUPPORTED;
    int64_t width = input->shape[dim], lines = 1;
    int64_t step = input->strides[dim], output_step = output->strides[dim];
    for (int axis = 0; axis < input->ndim; axis++)
        if (axis != dim)
            lines *= input->shape[axis];
    for (int64_t line = 0; line < lines; line++) {
        const float *x = (const float *)input->data + line_offset(input, dim, line);
        float *y = (float *)output->data + line_offset(output, dim, line);
        double largest = -INFINITY, sum = 0;
        for (int64_t i = 0; i < width; i++)
            if (x[i * step] > largest)
                largest = x[i * step];
        for (int64_t i = 0; i < width; i++)
            sum += exp(x[i * step] - largest);
        for (int64_t i = 0; i < width; i++)
            y[i * output_step] = (float)(exp(x[i * step] - largest) / sum);
    }
    return OPT_OK;
}
