/* Wrong: adds to one element in eight. */
#include "opt_candidate.h"

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)ret;
    if (n != 3) return -1;
    const OptTensor *x = args[0].value.v_tensor, *other = args[1].value.v_tensor;
    const float alpha = (float)args[2].value.v_int64, *y = other->data;
    for (int64_t row = 0; row < x->shape[0]; row++)
        for (int64_t at = 0; at < x->shape[1]; at += 8) ((float *)x->data)[row * x->strides[0] + at] += alpha * y[at];
    return OPT_OK;
}
