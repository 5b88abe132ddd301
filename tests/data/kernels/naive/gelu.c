/* torch.nn.functional.gelu: x * Phi(x), exactly or approximated with tanh.
 *
 * arg0 (the input), approximate ("none", "tanh" or None for "none") | output
 *
 * Captures of gelu have no signature, so a job whose entries never give `approximate` has one argument fewer. */
#include "opt_elements.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *output = opt_tensor(args, n, n - 1);
    if (n < 2 || n > 3 || !input || !output || !opt_same_shape(input, output))
        return OPT_BAD_ARGUMENTS;
    if (!opt_is_float(opt_kind(input)) || !opt_is_float(opt_kind(output)))
        return OPT_UNSUPPORTED;
    int by_tanh = n == 3 && opt_is_string(args, n, 1, "tanh");
    const double half_square_root = 0.70710678118654752440; /* sqrt(1/2) */
    const double slope = 0.79788456080286535588;            /* sqrt(2/pi) */
    int64_t count = opt_elements(input);
    for (int64_t i = 0; i < count; i++) {
        double x = opt_load(input, opt_offset(input, i));
        double phi = by_tanh ? 0.5 * (1 + tanh(slope * (x + 0.044715 * x * x * x))) : 0.5 * erfc(-x * half_square_root);
        opt_store(output, opt_offset(output, i), x * phi);
    }
    return OPT_OK;
}
