/* Correct: its plan call reads the running variance as well, and does not change it. In timed calls, that argument has other
 * values than in the plan call. */
#include <math.h>

#include "batch_norm.h"

static int found_values;

OPT_EXPORT int run_plan(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    const float first = *(const float *)args[2].value.v_tensor->data;
    found_values = 1e-3f < first && first < 100;
    return OPT_OK;
}

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self; (void)n; (void)ret;
    return found_values ? batch_norm(args, updated) : 1;
}
