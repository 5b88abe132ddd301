/* Eight new threads and the calling one allocate and fill private memory, a MiB at a time, until that is refused. */
#include "hostile.h"

#include <pthread.h>

static void *fill(void *nothing)
{
    const size_t bytes = 1 << 20;
    for (;;) {
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            abort();
        memset(memory, 1, bytes);
    }
    return nothing;
}

RUN
{
    pthread_t threads[8];
    (void)args;
    (void)n;
    int started = 0;
    while (started < 8 && pthread_create(&threads[started], NULL, fill, NULL) == 0)
        started++;
    fill(NULL);
    return 5;
}
