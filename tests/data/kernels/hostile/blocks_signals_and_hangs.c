/* Ignores requests to end, so it can only be killed. */
#include "hostile.h"

RUN
{
    sigset_t all;
    (void)args;
    (void)n;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}
