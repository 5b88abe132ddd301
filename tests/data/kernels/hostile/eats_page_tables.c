/* Reads one byte of every 2 MiB of memory that it never writes. No page is private, and only the page tables grow. */
#include "hostile.h"

RUN
{
    const size_t bytes = (size_t)64 << 20, step = 2 << 20;
    volatile char sum = 0;
    (void)args;
    (void)n;
    for (int i = 0; i < 1 << 20; i++) {
        char *memory = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            abort();
        for (size_t at = 0; at < bytes; at += step)
            sum += memory[at];
    }
    return 5;
}
