/* Leaves threads running after the call has returned. */
#include "hostile.h"

#include <pthread.h>

static void *work(void *nothing)
{
    volatile unsigned spins = 0;
    for (;;)
        spins++;
    return nothing;
}

RUN
{
    static int started;
    pthread_t thread;
    for (; started < 6; started++)
        if (pthread_create(&thread, NULL, work, NULL) != 0)
            return 3;
    return softmax(args, n);
}
