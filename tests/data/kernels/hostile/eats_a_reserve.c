/* Reserves address space, which is not owed, and makes it writable piece by piece. When a piece is refused, requests it
 * once more in a way that records the refused size. */
#include "hostile.h"

RUN
{
    const size_t reserve = (size_t)256 << 20, piece = 4 << 20;
    (void)args;
    (void)n;
    char *memory = mmap(NULL, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t at = 0; memory != MAP_FAILED && at < reserve; at += piece) {
        if (mprotect(memory + at, piece, PROT_READ | PROT_WRITE) != 0)
            break;
        memset(memory + at, 1, piece);
    }
    if (mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        abort();
    return 5;
}
