/* Tries to unmap an input, and to map or move writable memory to its addresses. Then stores there. */
#include "hostile.h"

RUN
{
    uintptr_t page = page_size(), data = (uintptr_t)input_of(args)->data;
    void *at = (void *)(data / page * page);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    munmap(at, page);
    if (mmap(at, page, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED)
        seen("an input can be mapped over");
    void *elsewhere = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (syscall(SYS_mremap, elsewhere, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, at) != -1)
        seen("memory can be moved over an input");
    *(volatile float *)data = 7;
    return softmax(args, n);
}
