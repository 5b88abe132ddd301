/* Tries to raise the limit of its stack, which is refused, and touches a frame of 64 MiB from the far end. */
#include "hostile.h"

#include <sys/resource.h>

__attribute__((noinline)) static char far_end(void)
{
    volatile char frame[64 << 20];
    frame[0] = 1;
    return frame[0];
}

RUN
{
    struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
    if (setrlimit(RLIMIT_STACK, &all) == 0 || setrlimit(RLIMIT_DATA, &all) == 0 || setrlimit(RLIMIT_AS, &all) == 0)
        seen("a limit can be raised");
    return softmax(args, n) + far_end() - 1;
}
