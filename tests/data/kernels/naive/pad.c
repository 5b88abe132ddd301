/* torch.nn.functional.pad: constant, reflect, replicate, circular.
 *
 * input, pad (1-D int64: before and after the last axis, then the one before it, …), mode, value or None | output
 *
 * Takes any dtype, because elements are copied as bytes. A constant other than zero requires a plain dtype. Negative
 * padding crops. */
#include "opt_elements.h"

/* The source index on an axis of `size` elements for position `at`, which may be outside; -1 for the constant. */
static int64_t source(int64_t at, int64_t size, const char *mode)
{
    if (at >= 0 && at < size)
        return at;
    if (strcmp(mode, "reflect") == 0)
        return at < 0 ? -at : 2 * (size - 1) - at;
    if (strcmp(mode, "replicate") == 0)
        return at < 0 ? 0 : size - 1;
    if (strcmp(mode, "circular") == 0)
        return (at % size + size) % size;
    return -1;
}

/* Returns whether the constant can be stored. Zero consists of zero bytes in every dtype. */
static int fill_is_plain(const OptTensor *output, double value)
{
    return value == 0 || opt_kind(output) != OPT_OTHER;
}

static void fill(const OptTensor *output, int64_t offset, double value)
{
    if (value == 0)
        memset(opt_at(output, offset), 0, opt_element_bytes(output));
    else if (opt_is_float(opt_kind(output)))
        opt_store(output, offset, value);
    else
        opt_store_exact(output, offset, (int64_t)value);
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    const OptTensor *input = opt_tensor(args, n, 0);
    const OptTensor *pad = opt_tensor(args, n, 1);
    const OptTensor *output = opt_tensor(args, n, 4);
    if (n != 5 || !input || !pad || !output || args[2].type_index != OPT_RAW_STR || input->ndim != output->ndim ||
        pad->ndim != 1 || pad->shape[0] > 2 * input->ndim)
        return OPT_BAD_ARGUMENTS;
    const char *mode = args[2].value.v_c_str;
    double value = opt_number(args, n, 3, 0);
    if (!fill_is_plain(output, value))
        return OPT_UNSUPPORTED;
    int64_t before[OPT_MAX_AXES] = {0};
    for (int64_t pair = 0; pair < pad->shape[0] / 2; pair++)
        before[input->ndim - 1 - pair] = opt_load_exact(pad, 2 * pair * pad->strides[0]);
    int64_t count = opt_elements(output);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, from = 0;
        int is_constant = 0;
        for (int axis = output->ndim - 1; axis >= 0; axis--) {
            int64_t at = source(rest % output->shape[axis] - before[axis], input->shape[axis], mode);
            rest /= output->shape[axis];
            if (at >= input->shape[axis])
                return OPT_BAD_ARGUMENTS; /* would also reflect at the far end, which torch refuses */
            is_constant |= at < 0;
            from += at * input->strides[axis];
        }
        int64_t to = opt_offset(output, i);
        if (is_constant)
            fill(output, to, value);
        else
            memcpy(opt_at(output, to), opt_at(input, from), opt_element_bytes(output));
    }
    return OPT_OK;
}
