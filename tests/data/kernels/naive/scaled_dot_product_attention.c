/* torch.nn.functional.scaled_dot_product_attention: softmax(query key^T * scale + mask) value.
 *
 * arg0 (query), arg1 (key), arg2 (value), attn_mask, dropout_p, is_causal, scale | output
 *
 * Captures of this op have no signature, so the order of its keywords depends on the entries. The job fixes the order:
 *     params = ["arg0", "arg1", "arg2", "attn_mask", "dropout_p", "is_causal", "scale"]
 *     defaults = { attn_mask = "none", dropout_p = 0.0, is_causal = false, scale = "none" }
 *
 * Takes floats and computes in double, without dropout or grouped heads. As in torch, a fully masked row gives zeros. */
#include "opt_elements.h"

/* Offset of one leading index (row-major over `leading` axes of the output) in a mask that broadcasts. */
static int64_t mask_offset(const OptTensor *mask, const OptTensor *output, int leading, int64_t index)
{
    int64_t offset = 0;
    int mask_leading = mask->ndim - 2;
    for (int back = 1; back <= leading; back++) {
        int64_t at = index % output->shape[leading - back];
        index /= output->shape[leading - back];
        if (back <= mask_leading && mask->shape[mask_leading - back] != 1)
            offset += at * mask->strides[mask_leading - back];
    }
    return offset;
}

static int same_leading_axes(const OptTensor *a, const OptTensor *b)
{
    if (a->ndim != b->ndim)
        return 0;
    for (int axis = 0; axis < a->ndim - 2; axis++)
        if (a->shape[axis] != b->shape[axis])
            return 0;
    return 1;
}

typedef struct {
    const OptTensor *query, *key, *value, *mask, *output;
    double scale;
    int is_causal;
} Attention;

/* The value that the mask adds to the score of query i and key j: -inf if the pair is masked. */
static double mask_term(const Attention *a, int64_t mask_base, int64_t i, int64_t j)
{
    if (a->is_causal && j > i)
        return -INFINITY;
    if (!a->mask)
        return 0;
    const OptTensor *mask = a->mask;
    int64_t row = mask->shape[mask->ndim - 2] == 1 ? 0 : i * mask->strides[mask->ndim - 2];
    int64_t column = mask->shape[mask->ndim - 1] == 1 ? 0 : j * mask->strides[mask->ndim - 1];
    double term = opt_load(mask, mask_base + row + column);
    if (opt_kind(mask) == OPT_B8)
        return term != 0 ? 0 : -INFINITY;
    return term;
}

static double score(const Attention *a, int64_t query_row, int64_t key_row)
{
    const OptTensor *q = a->query, *k = a->key;
    double sum = 0;
    for (int64_t d = 0; d < q->shape[q->ndim - 1]; d++)
        sum += opt_load(q, query_row + d * q->strides[q->ndim - 1]) *
               opt_load(k, key_row + d * k->strides[k->ndim - 1]);
    return sum * a->scale;
}

static void attend(const Attention *a, int64_t head, int64_t i)
{
    int leading = a->output->ndim - 2;
    const OptTensor *q = a->query, *k = a->key, *v = a->value, *o = a->output;
    int64_t query_row = opt_offset_of_axes(q, 0, leading, head) + i * q->strides[leading];
    int64_t key_base = opt_offset_of_axes(k, 0, leading, head);
    int64_t value_base = opt_offset_of_axes(v, 0, leading, head);
    int64_t output_row = opt_offset_of_axes(o, 0, leading, head) + i * o->strides[leading];
    int64_t mask_base = a->mask ? mask_offset(a->mask, o, leading, head) : 0;
    int64_t keys = k->shape[leading];
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        double s = score(a, query_row, key_base + j * k->strides[leading]) + mask_term(a, mask_base, i, j);
        if (s > largest || isnan(s))
            largest = s;
    }
    /* Scores are computed again for every column, which is slow but needs no workspace. */
    for (int64_t column = -1; column < v->shape[leading + 1]; column++) {
        double total = 0;
        for (int64_t j = 0; j < keys && largest != -INFINITY; j++) {
            double s = score(a, query_row, key_base + j * k->strides[leading]) + mask_term(a, mask_base, i, j);
            double power = exp(s - largest);
            if (column < 0)
                sum += power; /* the first round */
            else
                total += power / sum *
                         opt_load(v, value_base + j * v->strides[leading] + column * v->strides[leading + 1]);
        }
        if (column >= 0)
            opt_store(o, output_row + column * o->strides[leading + 1], total);
    }
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    Attention a = {opt_tensor(args, n, 0), opt_tensor(args, n, 1), opt_tensor(args, n, 2), opt_tensor(args, n, 3),
                   opt_tensor(args, n, 7), 0, opt_integer(args, n, 5, 0) != 0};
    if (n != 8 || !a.query || !a.key || !a.value || !a.output || a.query->ndim < 2 ||
        a.output->ndim != a.query->ndim || (a.mask && (a.mask->ndim < 2 || a.mask->ndim > a.output->ndim)))
        return OPT_BAD_ARGUMENTS;
    if (!same_leading_axes(a.query, a.key) || !same_leading_axes(a.query, a.value) ||
        !opt_is_float(opt_kind(a.query)) || !opt_is_float(opt_kind(a.output)) || opt_number(args, n, 4, 0) != 0)
        return OPT_UNSUPPORTED;
    int leading = a.query->ndim - 2;
    a.scale = opt_number(args, n, 6, 1 / sqrt((double)a.query->shape[leading + 1]));
    int64_t heads = 1;
    for (int axis = 0; axis < leading; axis++)
        heads *= a.output->shape[axis];
    for (int64_t head = 0; head < heads; head++)
        for (int64_t i = 0; i < a.output->shape[leading]; i++)
            attend(&a, head, i);
    return OPT_OK;
}
