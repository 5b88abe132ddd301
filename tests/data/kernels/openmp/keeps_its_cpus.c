/* relu over contiguous float32, on one thread. Before it, starts a thread for each CPU that the calling thread may use,
   and fails if one of them may still not use all of these CPUs after two seconds. */
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>

#include "opt_candidate.h"

static const double MOST_SECONDS = 2.0;

/* The code that is returned if a thread may not use all of these CPUs. */
enum { CONFINED = 41 };

static int cpus_of_this_thread(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

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
    const int all = cpus_of_this_thread();
    int confined = 0;
#pragma omp parallel num_threads(all) reduction(+ : confined)
    {
        const double end = omp_get_wtime() + MOST_SECONDS;
        while (cpus_of_this_thread() != all && omp_get_wtime() < end) {
        }
        confined += cpus_of_this_thread() != all;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = from[i] < 0 ? 0 : from[i];
    return confined == 0 ? OPT_OK : CONFINED;
}
