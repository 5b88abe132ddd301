/* Correct: its plan call reads the running statistics as well, and does not change them. */
#include "batch_norm.h"

static float planned;

OPT_EXPORT int run_plan(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    planned = *(const float *)args[1].value.v_tensor->data;
    return OPT_OK;
}

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    return planned == *(const float *)args[1].value.v_tensor->data ? batch_norm(args, updated) : 1;
}
