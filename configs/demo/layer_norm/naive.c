/* (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, in double, through the strides.
 * input, normalized_shape, weight or None, bias or None, eps | output */
#include <math.h>
#include <stddef.h>

#include "opt_candidate.h"

/* Offset, in elements, of the index-th row: all axes but the last, in row-major order. */
static int64_t row_offset(const OptTensor *t, int64_t index)
{
    int64_t offset = 0;
    for (int axis = t->ndim - 2; axis >= 0; axis--) {
        offset += index % t->shape[axis] * t->strides[axis];
        index /= t->shape[axis];
    }
    return offset;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    if (n != 6 || args[0].type_index != OPT_TENSOR || args[4].type_index != OPT_FLOAT)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *normalized = args[1].value.v_ptr, *output = args[5].value.v_ptr;
    const OptTensor *weight = args[2].type_index == OPT_TENSOR ? args[2].value.v_ptr : NULL;
    const OptTensor *bias = args[3].type_index == OPT_TENSOR ? args[3].value.v_ptr : NULL;
    if (input->dtype.code != OPT_CODE_FLOAT || input->dtype.bits != 32 || normalized->shape[0] != 1)
        return OPT_UNSUPPORTED;
    int last = input->ndim - 1;
    int64_t width = input->shape[last], rows = 1;
    int64_t step = input->strides[last], output_step = output->strides[last];
    for (int axis = 0; axis < last; axis++)
        rows *= input->shape[axis];
    for (int64_t row = 0; row < rows; row++) {
        const float *x = (const float *)input->data + row_offset(input, row);
        float *y = (float *)output->data + row_offset(output, row);
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < width; i++)
            sum += x[i * step];
        double mean = sum / (double)width;
        for (int64_t i = 0; i < width; i++)
            squares += (x[i * step] - mean) * (x[i * step] - mean);
        double scale = 1 / sqrt(squares / (double)width + args[4].value.v_float64);
        for (int64_t i = 0; i < width; i++) {
            double value = (x[i * step] - mean) * scale;
            if (weight)
                value *= ((const float *)weight->data)[i * weight->strides[0]];
            if (bias)
                value += ((const float *)bias->data)[i * bias->strides[0]];
            y[i * output_step] = (float)value;
        }
    }
    return OPT_OK;
}
