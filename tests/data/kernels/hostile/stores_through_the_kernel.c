/* Tries to make Linux change an input: through a pipe, process_vm_writev, /proc/self/mem, and by discarding its pages.
 * None of these attempts may have an effect, so the result is right. */
#include "hostile.h"

#include <sys/uio.h>

RUN
{
    const OptTensor *input = input_of(args);
    uintptr_t page = page_size();
    float *data = input->data, value = 7, first = data[0], last = data[elements(input) - 1];
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], &value, sizeof value) != sizeof value)
        seen("no pipe to store through");
    if (read(ends[0], data, sizeof value) != -1)
        seen("read stores into an input");
    struct iovec from = { &value, sizeof value }, to = { data, sizeof value };
    if (syscall(SYS_process_vm_writev, getpid(), &from, 1L, &to, 1L, 0L) != -1)
        seen("process_vm_writev works");
    if (syscall(SYS_process_vm_readv, getpid(), &from, 1L, &to, 1L, 0L) != -1)
        seen("process_vm_readv works");
    if (open("/proc/self/mem", O_RDWR) != -1 || open("/proc/thread-self/mem", O_WRONLY) != -1)
        seen("/proc/self/mem opens");
    static const int advices[] = { MADV_REMOVE, MADV_DONTNEED, MADV_FREE, 21 /* PAGEOUT */, 23 /* POPULATE_WRITE */ };
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++)
        for (uintptr_t at = (uintptr_t)data / page * page; at < (uintptr_t)(data + elements(input)); at += page)
            madvise((void *)at, page, advices[i]);
    if (memcmp(&data[0], &first, 4) != 0 || memcmp(&data[elements(input) - 1], &last, 4) != 0)
        seen("an input changed");
    close(ends[0]);
    close(ends[1]);
    return softmax(args, n);
}
