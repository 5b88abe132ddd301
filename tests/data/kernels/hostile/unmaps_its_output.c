/* Replaces its output with private memory at the same address, and writes the result there. */
#include "hostile.h"

RUN
{
    const OptTensor *output = output_of(args);
    uintptr_t page = page_size(), data = (uintptr_t)output->data, end = data + (uintptr_t)elements(output) * 4;
    uintptr_t from = data / page * page, to = (end + page - 1) / page * page;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap((void *)from, to - from, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return 6;
    return softmax(args, n);
}
