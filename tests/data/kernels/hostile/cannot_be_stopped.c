/* Leaves a thread in a system call that SIGSTOP does not interrupt: the caller of a clone with CLONE_VFORK waits until the
 * new thread has ended, and only SIGKILL ends this wait. */
#include "hostile.h"

#include <pthread.h>
#include <sched.h>

static volatile int is_waiting;

static int wait_forever(void *nothing)
{
    (void)nothing;
    is_waiting = 1;
    for (;;)
        pause();
    return 0;
}

static void *start_and_wait(void *nothing)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    clone(wait_forever, stack + sizeof stack,
          CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD | CLONE_VFORK, NULL);
    return nothing;
}

RUN
{
    static int started;
    pthread_t thread;
    if (started++ == 0 && pthread_create(&thread, NULL, start_and_wait, NULL) != 0)
        return 3;
    while (!is_waiting)
        usleep(100);
    return softmax(args, n);
}
