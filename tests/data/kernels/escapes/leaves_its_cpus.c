/* Requests all CPUs. The request is refused if it would add CPUs. */
#include "hostile.h"

#include <sched.h>

RUN
{
    cpu_set_t given, all;
    CPU_ZERO(&given);
    if (sched_getaffinity(0, sizeof given, &given) != 0)
        return 1;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) != CPU_COUNT(&given))
        seen("it runs on %d CPUs and was given %d", CPU_COUNT(&all), CPU_COUNT(&given));
    return softmax(args, n);
}
