/* relu over contiguous float32 with four threads. Fails unless all four exist and do their share. */
#include <omp.h>

#include "opt_candidate.h"

enum { THREADS = 4 };

/* The code that is returned if OpenMP starts fewer threads than requested. */
enum { TOO_FEW_THREADS = 40 };

OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)n;
    (void)ret;
    const OptTensor *input = args[0].value.v_tensor;
    const float *from = input->data;
    float *to = args[2].value.v_tensor->data;
    int64_t count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= input->shape[axis];
    int started = 0;
#pragma omp parallel reduction(+ : started)
    {
        int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        for (int64_t i = count * me / all; i < count * (me + 1) / all; i++)
            to[i] = from[i] < 0 ? 0 : from[i];
        started += 1;
    }
    return started == THREADS ? OPT_OK : TOO_FEW_THREADS + started;
}
