/* Starts as many threads as it can, at most 256. Each touches almost all of its stack of 16 MiB. Then does its work. */
#include "hostile.h"

#include <pthread.h>

enum { STACK = 16 << 20, TOUCHED = STACK - (64 << 10) };

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *touch(void *nothing)
{
    volatile char frame[TOUCHED];
    for (size_t at = 0; at < TOUCHED; at += 4096)
        frame[at] = 1;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return nothing;
}

RUN
{
    static pthread_t threads[256];
    pthread_attr_t large;
    int started = 0;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, STACK);
    pthread_mutex_lock(&gate);
    while (started < 256 && pthread_create(&threads[started], &large, touch, NULL) == 0)
        started++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return softmax(args, n);
}
