/* Tries to create memory that outlives a process or that no limit counts: files, memfd, System V shared memory, message
 * queues, locked memory. All attempts are refused. */
#include "hostile.h"

#include <sys/ipc.h>
#include <sys/shm.h>

RUN
{
    if (open("/dev/shm/opt-hostile", O_RDWR | O_CREAT, 0600) >= 0 || open("/tmp/opt-hostile", O_RDWR | O_CREAT, 0600) >= 0 ||
        open("/tmp", O_RDWR | O_TMPFILE, 0600) >= 0)
        seen("a file can be made");
    if (syscall(SYS_memfd_create, "hostile", 0L) >= 0)
        seen("memfd_create works");
    if (shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0)
        seen("shmget works");
    struct { long flags, most, bytes, now; } queue = { 0, 10, 1024, 0 };
    if (syscall(SYS_mq_open, "/opt-hostile", O_RDWR | O_CREAT, 0600L, &queue) >= 0)
        seen("mq_open works");
    if (mlockall(MCL_CURRENT | MCL_FUTURE) == 0)
        seen("mlockall works");
    void *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED && mlock(memory, 1 << 20) == 0)
        seen("mlock works");
    return softmax(args, n);
}
