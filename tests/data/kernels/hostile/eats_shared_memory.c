/* Fills shared anonymous memory, which no limit on private memory counts. */
#include "hostile.h"

RUN
{
    const size_t bytes = 32 << 20;
    (void)args;
    (void)n;
    for (int i = 0; i < 64; i++) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            abort();
        memset(memory, 1, bytes);
    }
    return 5;
}
