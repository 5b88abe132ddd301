/* Multiplies bfloat16 values by 0.994 in place. With STOPS, calls after the first ten leave out nine of ten elements. */
#include <stdint.h>
#include <string.h>

#include "opt_candidate.h"

static int calls;

static float to_float(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)ret;
    if (n != 2) return -1;
    const OptTensor *x = args[0].value.v_tensor;
    const float factor = (float)args[1].value.v_float64;
    uint16_t *values = x->data;
    int64_t step = 1;
#ifdef STOPS
    if (calls >= 10) step = 10;
#endif
    calls++;
    for (int64_t at = 0; at < x->shape[0] * x->shape[1]; at += step)
        values[at] = to_bfloat16(factor * to_float(values[at]));
    return OPT_OK;
}
