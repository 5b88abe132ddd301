/* Tries to leave processes behind that outlive the run, each in a session of its own; does not mind when it may not.
 * The result is right.
 * Ends as PASSED: the attempt is refused and noted, and only the outcome counts. */
#include <math.h>
#include <unistd.h>

#include "opt_candidate.h"

static int softmax(const OptAny *args, int32_t n)
{
    if (n != 5 || args[0].type_index != OPT_TENSOR)
        return 1;
    const OptTensor *input = args[0].value.v_ptr, *output = args[4].value.v_ptr;
    int64_t width = input->shape[input->ndim - 1], count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= input->shape[axis];
    for (int64_t row = 0; row < count; row += width) {
        const float *x = (const float *)input->data + row;
        float *y = (float *)output->data + row;
        float largest = x[0], sum = 0;
        for (int64_t i = 1; i < width; i++)
            largest = x[i] > largest ? x[i] : largest;
        for (int64_t i = 0; i < width; i++)
            sum += y[i] = expf(x[i] - largest);
        for (int64_t i = 0; i < width; i++)
            y[i] /= sum;
    }
    return OPT_OK;
}

static void start_daemon(void)
{
    if (fork() != 0)
        return;
    setsid();
    if (fork() == 0)
        sleep(3600);
    _exit(0);
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    static int started;
    if (!started) {
        started = 1;
        for (int i = 0; i < 4; i++)
            start_daemon();
    }
    return softmax(args, n);
}
