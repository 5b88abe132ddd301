/* Tries every way to lock memory; all should be refused. Then fills memory with maps that are populated at once. */
#include "hostile.h"

RUN
{
    const size_t bytes = 4 << 20;
    (void)args;
    (void)n;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED && (mlock(memory, bytes) == 0 || syscall(SYS_mlock2, memory, bytes, 1L) == 0))
        seen("memory can be locked");
    if (mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0) != MAP_FAILED)
        seen("a map can be locked");
    for (int i = 0; i < 1 << 12; i++) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (memory == MAP_FAILED)
            abort();
    }
    return 5;
}
