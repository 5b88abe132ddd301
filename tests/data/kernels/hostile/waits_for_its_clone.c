/* Tries a clone with CLONE_VFORK. Its caller waits until the new thread has ended, and only SIGKILL ends this wait, so the
 * process could not be stopped. The clone must be refused. */
#include "hostile.h"

#include <errno.h>
#include <sched.h>

static int wait_forever(void *nothing)
{
    (void)nothing;
    for (;;)
        pause();
    return 0;
}

RUN
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    int cloned = clone(wait_forever, stack + sizeof stack,
                       CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD | CLONE_VFORK,
                       NULL);
    if (cloned != -1 || errno != EPERM)
        return 3;
    return softmax(args, n);
}
