/* Ends the thread that called it. Another thread keeps the process alive. */
#include "hostile.h"

#include <pthread.h>

static void *stay(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

RUN
{
    pthread_t thread;
    softmax(args, n);
    if (pthread_create(&thread, NULL, stay, NULL) != 0)
        return 3;
    syscall(SYS_exit, 0);
    return 4;
}
