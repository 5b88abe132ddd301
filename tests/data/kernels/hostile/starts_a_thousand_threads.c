/* Starts as many threads as it can, at most a thousand. Waits for them, then does its work. */
#include "hostile.h"

#include <pthread.h>

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_the_gate(void *nothing)
{
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return nothing;
}

RUN
{
    static pthread_t threads[1000];
    pthread_attr_t small;
    int started = 0;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_mutex_lock(&gate);
    while (started < 1000 && pthread_create(&threads[started], &small, wait_at_the_gate, NULL) == 0)
        started++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return softmax(args, n);
}
