/* exp(x - max) / sum along the last axis of contiguous float32. Computes one exponential per element instead of
 * two, with a function that vectorises. The sum uses all float lanes of the machine.
 * input, dim, _stacklevel, dtype or None | output
 *
 * Needs -fopenmp-simd: without it, maximum and sum use one lane, because C does not allow reordering them. */
#include <math.h>
#include <string.h>

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

/* e^x for x <= 0, within 2 units of the last place. Results below e^-87, near the smallest normal number, are e^-87.
 * x = k ln 2 + r with an integer k: adding 1.5 * 2^23 rounds x / ln 2 to k and leaves k in the low bits of the sum.
 * Without branches and conversions to int, the loop that calls this vectorises and NaN remains NaN. */
static inline float exponential(float x)
{
    const float rounder = 12582912.0f;
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + rounder;
    float k = shifted - rounder;
    float r = x - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts; k times the first part is exact */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23; /* 2^k; the bits of the rounder are shifted out */
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static void softmax_row(const float *restrict x, float *restrict y, int64_t width)
{
    float largest = -INFINITY, sum = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < width; i++)
        largest = x[i] > largest ? x[i] : largest;
    if (largest == -INFINITY)
        largest = NAN; /* every element is -inf */
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
        y[i] = exponential(x[i] - largest);
        sum += y[i];
    }
    float share = 1 / sum;
    for (int64_t i = 0; i < width; i++)
        y[i] *= share;
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    if (n != 5 || args[0].type_index != OPT_TENSOR || args[1].type_index != OPT_INT)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *output = args[4].value.v_ptr;
    int64_t dim = args[1].value.v_int64 < 0 ? args[1].value.v_int64 + input->ndim : args[1].value.v_int64;
    if (dim != input->ndim - 1 || !is_contiguous_f32(input) || !is_contiguous_f32(output))
        return OPT_UNSUPPORTED;
    int64_t width = input->shape[dim], rows = 1;
    for (int axis = 0; axis < input->ndim - 1; axis++)
        rows *= input->shape[axis];
    for (int64_t row = 0; row < rows; row++)
        softmax_row((const float *)input->data + row * width, (float *)output->data + row * width, width);
    return OPT_OK;
}
