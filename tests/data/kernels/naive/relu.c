/* torch.nn.functional.relu: max(x, 0), where NaN stays NaN.
 *
 * input, inplace | output
 *
 * Takes all plain dtypes. A capture of an in-place call has the input after the call, which relu does not change. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *output = opt_tensor(args, n, 2);
    if (n != 3 || !input || !output || !opt_same_shape(input, output))
        return OPT_BAD_ARGUMENTS;
    OptKind kind = opt_kind(input);
    if (kind == OPT_OTHER || kind != opt_kind(output))
        return OPT_UNSUPPORTED;
    int is_unsigned = kind >= OPT_U64 && kind <= OPT_B8;
    int64_t count = opt_elements(input);
    for (int64_t i = 0; i < count; i++) {
        int64_t from = opt_offset(input, i), to = opt_offset(output, i);
        if (opt_is_float(kind)) {
            double x = opt_load(input, from);
            opt_store(output, to, x < 0 ? 0 : x);
        } else {
            int64_t x = opt_load_exact(input, from);
            opt_store_exact(output, to, x < 0 && !is_unsigned ? 0 : x);
        }
    }
    return OPT_OK;
}
