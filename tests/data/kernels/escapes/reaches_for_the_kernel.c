/* Tries to create rules, filters, watches, timers and locks, and to change the page cache. Each would use memory of the
 * operating system that no limit counts, or disturb the candidate that is timed next. All attempts are refused. */
#include "hostile.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

#define SYS_LANDLOCK_CREATE_RULESET 444

RUN
{
    struct { uint64_t files, net, scoped; } rules = { 1, 0, 0 };
    if (syscall(SYS_LANDLOCK_CREATE_RULESET, &rules, sizeof rules, 0L) >= 0)
        seen("landlock_create_ruleset works");
    struct sock_filter allow = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
    struct sock_fprog filter = { 1, &allow };
    if (syscall(SYS_seccomp, (long)SECCOMP_SET_MODE_FILTER, 0L, &filter) == 0)
        seen("a filter of its own is installed");
    if (syscall(SYS_seccomp, (long)SECCOMP_SET_MODE_FILTER, (long)SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter) >= 0)
        seen("a listener of its own is installed");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0)
        seen("a filter of its own is installed by prctl");
    if (inotify_init1(0) >= 0)
        seen("inotify works");
    if (timerfd_create(CLOCK_MONOTONIC, 0) >= 0)
        seen("timerfd_create works");
    int library = open("/etc/ld.so.cache", O_RDONLY);
    if (library >= 0 && flock(library, LOCK_SH) == 0)
        seen("flock works");
    if (library >= 0 && syncfs(library) == 0)
        seen("syncfs works");
    if (syscall(SYS_sync) == 0)
        seen("sync works");
    /* The operating system would continue to read while another candidate is timed. */
    if (library >= 0 && readahead(library, 0, 4096) == 0)
        seen("readahead works");
    if (library >= 0 && (posix_fadvise(library, 0, 0, POSIX_FADV_WILLNEED) == 0
                         || posix_fadvise(library, 0, 0, POSIX_FADV_DONTNEED) == 0))
        seen("posix_fadvise works");
    void *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, library, 0);
    if (map != MAP_FAILED && madvise(map, 4096, MADV_WILLNEED) == 0)
        seen("MADV_WILLNEED works");
    close(library);
    return softmax(args, n);
}
