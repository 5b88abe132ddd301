/* Tries to allocate memory that is not counted for this process. All ways are refused. */
#include "hostile.h"

#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#define SYS_CLOSE_RANGE 436
#define CLOSE_RANGE_UNSHARE 2
#define PR_FUTEX_HASH 78

RUN
{
    const size_t bytes = 32 << 20;
    for (int i = 0; i < 24; i++) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            break;
        memset(memory, 1, bytes);
        madvise(memory, bytes, MADV_DONTNEED);
        if (i == 23)
            seen("768 MiB in shared maps that are not resident");
    }
    /* Counts as stack, so the limit on private memory would not apply. */
    if (mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0) != MAP_FAILED)
        seen("a private map that grows downwards");
    /* One table of futexes for the process, of up to a gigabyte. */
    if (prctl(PR_FUTEX_HASH, 1L, 1L << 20, 0L, 0L) == 0)
        seen("a futex table of its own");
    /* Another table of descriptors, with a limit of its own. */
    if (syscall(SYS_CLOSE_RANGE, 1L << 20, 1L << 21, (long)CLOSE_RANGE_UNSHARE) == 0)
        seen("a descriptor table of its own");
    /* After the map is gone, a pipe would keep the page, and with it the huge page that contains it. */
    int ends[2], more[2];
    if (pipe(ends) != 0 || pipe(more) != 0)
        return 1;
    struct iovec page = { malloc(4096), 4096 };
    if (vmsplice(ends[1], &page, 1, SPLICE_F_GIFT) > 0)
        seen("vmsplice works");
    if (write(ends[1], "x", 1) == 1 && tee(ends[0], more[1], 1, SPLICE_F_NONBLOCK) > 0)
        seen("tee works");
    int library = open("/etc/ld.so.cache", O_RDONLY);
    if (library >= 0 && splice(library, NULL, ends[1], NULL, 4096, 0) > 0)
        seen("splice works");
    if (library >= 0 && sendfile(ends[1], library, NULL, 4096) > 0)
        seen("sendfile works");
    /* Each locked range uses kernel memory, and their number is not limited. */
    struct flock range = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1 };
    if (library >= 0 && (fcntl(library, F_SETLK, &range) == 0 || fcntl(library, F_OFD_SETLK, &range) == 0))
        seen("ranges can be locked");
    close(library);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(more[i]);
    }
    free(page.iov_base);
    return softmax(args, n);
}
