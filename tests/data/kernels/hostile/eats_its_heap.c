/* Moves the end of the heap and touches each new page, until that is refused. */
#include "hostile.h"

RUN
{
    const intptr_t bytes = 4 << 20;
    (void)args;
    (void)n;
    for (int i = 0; i < 1 << 12; i++) {
        char *memory = sbrk(bytes);
        if (memory == (void *)-1)
            abort();
        memset(memory, 1, (size_t)bytes);
    }
    return 5;
}
