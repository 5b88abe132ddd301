/* Tries to make an input writable, and stores into it. */
#include "hostile.h"

RUN
{
    uintptr_t page = page_size(), data = (uintptr_t)input_of(args)->data;
    for (uintptr_t at = data / page * page; at < data + 4 * page; at += page)
        mprotect((void *)at, page, PROT_READ | PROT_WRITE);
    mprotect((void *)(data / page * page), page, PROT_READ | PROT_WRITE | PROT_EXEC);
    *(volatile float *)data = 7;
    return softmax(args, n);
}
