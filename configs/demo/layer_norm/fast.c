/* (x - mean) / sqrt(variance + eps) * weight + bias over the last axis of contiguous float32. The sums use all
 * float lanes of the machine.
 * input, normalized_shape, weight or None, bias or None, eps | output
 *
 * Needs -fopenmp-simd: without it, the sums use one lane, because C does not allow reordering them. */
#include <math.h>
#include <stddef.h>

#include "opt_candidate.h"

static int is_contiguous_f32(const OptTensor *t)
{
    int64_t expected = 1;
    for (int axis = t->ndim - 1; axis >= 0; axis--) {
        if (t->shape[axis] != 1 && t->strides[axis] != expected)
            return 0;
        expected *= t->shape[axis];
    }
    return t->dtype.code == OPT_CODE_FLOAT && t->dtype.bits == 32;
}

static void normalize_row(const float *restrict x, const float *restrict weight, const float *restrict bias,
                          float *restrict y, int64_t width, float eps)
{
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++)
        sum += x[i];
    float mean = sum / (float)width;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float scale = 1 / sqrtf(squares / (float)width + eps);
    if (weight && bias)
        for (int64_t i = 0; i < width; i++)
            y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    else if (weight)
        for (int64_t i = 0; i < width; i++)
            y[i] = (x[i] - mean) * scale * weight[i];
    else
        for (int64_t i = 0; i < width; i++)
            y[i] = (x[i] - mean) * scale + (bias ? bias[i] : 0);
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
    if (normalized->shape[0] != 1 || !is_contiguous_f32(input) || !is_contiguous_f32(output) ||
        (weight && !is_contiguous_f32(weight)) || (bias && !is_contiguous_f32(bias)))
        return OPT_UNSUPPORTED;
    int64_t width = input->shape[input->ndim - 1], rows = 1;
    for (int axis = 0; axis < input->ndim - 1; axis++)
        rows *= input->shape[axis];
    for (int64_t row = 0; row < rows; row++)
        normalize_row((const float *)input->data + row * width, weight ? weight->data : NULL,
                      bias ? bias->data : NULL, (float *)output->data + row * width, width,
                      (float)args[4].value.v_float64);
    return OPT_OK;
}
