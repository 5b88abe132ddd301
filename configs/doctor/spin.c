/* `doctor --timing` times copies of this kernel side by side: about 50 µs of arithmetic, and a ReLU whose output is
 * verified. */
#include "opt_candidate.h"

int run(void *self, const OptAny *args, int32_t count, OptAny *ret)
{
    const OptTensor *in = args[0].value.v_ptr;
    OptTensor *out = args[count - 1].value.v_ptr;
    int64_t elements = 1;
    volatile double kept;
    double x = 1.0;

    (void)self;
    (void)ret;
    for (long i = 0; i < 40000; i++)
        x = x * 1.0000001 + 1e-9;
    kept = x;
    (void)kept;
    for (int d = 0; d < in->ndim; d++)
        elements *= in->shape[d];
    for (int64_t i = 0; i < elements; i++) {
        float value = ((const float *)in->data)[i];
        ((float *)out->data)[i] = value > 0 ? value : 0;
    }
    return 0;
}
