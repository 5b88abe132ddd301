#include "relu.cuh"

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    volatile int more = 1;
    while (more) { }
    return call_of(args, n).count == 0;
}
