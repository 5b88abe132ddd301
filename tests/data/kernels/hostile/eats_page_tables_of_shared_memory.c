/* Touches one byte of every 2 MiB of shared maps. Each touch costs a page and a page table, and no limit on private
 * memory counts them. */
#include "hostile.h"

RUN
{
    const size_t bytes = (size_t)64 << 20, step = 2 << 20;
    (void)args;
    (void)n;
    for (int i = 0; i < 1 << 20; i++) {
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            abort();
        for (size_t at = 0; at < bytes; at += step)
            memory[at] = 1;
    }
    return 5;
}
