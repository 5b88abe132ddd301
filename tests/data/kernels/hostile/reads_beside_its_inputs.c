/* Searches everything that a process can read for bytes of the capture that are not its input: the expected output, the
 * pickle, the zip's directory. The markers to search for are in `markers.h`, which the test writes. Each of their bytes
 * is XORed with 0xA5; otherwise the search would find them in this library.
 *
 * CONTROL_MEMORY, CONTROL_DESCRIPTOR and CONTROL_PATH add a marker that must be found: in the input, in a descriptor, or
 * in a readable file. With CONTROL_AROUND, half of the input counts as the input, and bytes of the rest must be found.
 * They prove that each kind of search works. */
#include "hostile.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "markers.h" /* MARKERS: {bytes…}, each MARKER_BYTES long; CAPTURE_PATHS; IN_INPUT: a marker of the input */

enum { HIDDEN = 0xA5, MARKERS_MOST = 256 };

static unsigned char hidden[][MARKER_BYTES] = { MARKERS };
#ifdef CONTROL_MEMORY
static unsigned char in_input[MARKER_BYTES] = { IN_INPUT };
#endif
#ifdef CONTROL_DESCRIPTOR
static unsigned char in_descriptor[MARKER_BYTES] = { IN_INPUT };
#endif
static const char *const capture_paths[] = { CAPTURE_PATHS };

static const unsigned char *wanted[MARKERS_MOST];
static int wanted_count;
static unsigned char begins[65536]; /* pairs of first bytes, still hidden */
static const char *stage = "";

static void want(const unsigned char *marker)
{
    if (wanted_count == MARKERS_MOST)
        seen("more markers than fit");
    wanted[wanted_count++] = marker;
    begins[marker[0] << 8 | marker[1]] = 1;
}

static int is_marker(const unsigned char *bytes)
{
    for (int i = 0; i < wanted_count; i++) {
        int same = 1;
        for (int at = 0; same && at < MARKER_BYTES; at++)
            same = (bytes[at] ^ HIDDEN) == wanted[i][at];
        if (same)
            return i + 1;
    }
    return 0;
}

static void look_at(const unsigned char *bytes, size_t count, const char *where)
{
    for (size_t at = 0; at + MARKER_BYTES <= count; at++)
        if (begins[(bytes[at] ^ HIDDEN) << 8 | (bytes[at + 1] ^ HIDDEN)]) {
            int marker = is_marker(bytes + at);
            if (marker != 0)
                seen("marker %d %s, %s", marker, stage, where);
        }
}

/* A marker may extend over two pages, so the end of the previous page is kept. */
static unsigned char window[MARKER_BYTES + 65536];
static uintptr_t window_end;
static size_t kept;

static void look_at_page(uintptr_t at, const unsigned char *bytes, size_t count, void *context)
{
    (void)context;
    if (at != window_end)
        kept = 0;
    memcpy(window + kept, bytes, count);
    look_at(window, kept + count, "in memory");
    size_t tail = kept + count < MARKER_BYTES - 1 ? kept + count : MARKER_BYTES - 1;
    memmove(window, window + kept + count - tail, tail);
    kept = tail;
    window_end = at + count;
}

static int pipe_ends[2];

/* Wipes the buffers of a scan. Otherwise the next scan would find copies that this one made. */
static void wipe(void)
{
    memset(window, 0, sizeof window);
    kept = 0;
}

static void scan_memory(const char *when, const OptTensor *input)
{
    stage = when;
    size_t pages = walk(pipe_ends, LOWEST_ADDRESS, highest_address(), look_at_page, NULL);
    if (pages < (size_t)(elements(input) * 4) / page_size())
        seen("the walk is blind: %zu pages", pages);
    wipe();
}

/* Checks that the rest of an input's pages is zero, and that the pages beside them cannot be read. */
static void look_around(const char *when, const OptTensor *input)
{
    static unsigned char copy[65536];
    uintptr_t page = page_size(), data = (uintptr_t)input->data, end = data + (uintptr_t)elements(input) * 4;
    uintptr_t from = data / page * page, to = (end + page - 1) / page * page;
    stage = when;
    if (peek(pipe_ends, from - page, copy, page) != 0 || peek(pipe_ends, to, copy, page) != 0)
        seen("a page beside the input %s", stage);
    for (uintptr_t at = from; at < data; at++)
        if (*(unsigned char *)at != 0)
            seen("byte %zu of the page before the input's data %s", (size_t)(data - at), stage);
    for (uintptr_t at = end; at < to; at++)
        if (*(unsigned char *)at != 0)
            seen("byte %zu behind the input's data %s", (size_t)(at - end), stage);
}

static void look_both(const char *when, const OptTensor *input)
{
    look_around(when, input);
    scan_memory(when, input);
}

static void advise_all(uintptr_t from, uintptr_t to, int advice)
{
    /* Advise the whole range, then single pages at both ends, where guards, anonymous pages and the file meet. If one
     * page is refused, the others are still tried. */
    uintptr_t page = page_size();
    madvise((void *)from, to - from, advice);
    for (uintptr_t at = from; at < to; at += page)
        if (at < from + 4 * page || to - 4 * page <= at)
            madvise((void *)at, page, advice);
}

static void scan_after_changes(const OptTensor *input)
{
    uintptr_t page = page_size(), data = (uintptr_t)input->data, end = data + (uintptr_t)elements(input) * 4;
    uintptr_t from = data / page * page - page, to = (end + page - 1) / page * page + page;
    static const struct { int advice; const char *name; } advices[] = {
        { MADV_DONTNEED, "after MADV_DONTNEED" }, { 24 /* DONTNEED_LOCKED */, "after MADV_DONTNEED_LOCKED" },
        { MADV_REMOVE, "after MADV_REMOVE" },     { 20 /* COLD */, "after MADV_COLD" },
        { 21 /* PAGEOUT */, "after MADV_PAGEOUT" }, { MADV_FREE, "after MADV_FREE" },
        { MADV_WILLNEED, "after MADV_WILLNEED" }, { 22 /* POPULATE_READ */, "after MADV_POPULATE_READ" },
        { 23 /* POPULATE_WRITE */, "after MADV_POPULATE_WRITE" }, { MADV_DOFORK, "after MADV_DOFORK" },
        { MADV_HUGEPAGE, "after MADV_HUGEPAGE" }, { 25 /* COLLAPSE */, "after MADV_COLLAPSE" },
        { 102 /* GUARD_INSTALL */, "after MADV_GUARD_INSTALL" }, { 103 /* GUARD_REMOVE */, "after MADV_GUARD_REMOVE" },
    };
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        advise_all(from, to, advices[i].advice);
        look_around(advices[i].name, input);
    }
    scan_memory("after all of madvise", input);

    for (uintptr_t at = from; at < to; at += page) {
        if (mprotect((void *)at, page, PROT_READ | PROT_WRITE) == 0)
            seen("mprotect of a page of an input");
        if (munmap((void *)at, page) == 0)
            seen("munmap of a page of an input");
        /* mremap could extend a map of the file beyond its end, or map it at another address. */
        if (syscall(SYS_mremap, at, page, 2 * page, MREMAP_MAYMOVE, 0L) != -1 ||
            syscall(SYS_mremap, at, 0L, 4 * page, MREMAP_MAYMOVE, 0L) != -1)
            seen("mremap of a page of an input");
        if (syscall(SYS_remap_file_pages, at, page, 0L, 1L, 0L) != -1)
            seen("remap_file_pages of an input");
    }
    mprotect((void *)from, to - from, PROT_READ | PROT_WRITE | PROT_EXEC);
    munmap((void *)from, to - from);
    look_both("after mprotect, munmap and mremap", input);
}

static void look_into(int descriptor, const char *where)
{
    static unsigned char copy[65536];
    const off_t most = 64 << 20;
    ssize_t got;
    for (off_t at = 0; at < most && (got = pread(descriptor, copy, sizeof copy, at)) > 0; at += got - MARKER_BYTES) {
        look_at(copy, (size_t)got, where);
        if (got <= MARKER_BYTES)
            break;
    }
    void *mapped = mmap(NULL, sizeof copy, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped != MAP_FAILED) {
        struct stat status;
        size_t bytes = fstat(descriptor, &status) == 0 && status.st_size < (off_t)sizeof copy
                           ? (size_t)status.st_size / page_size() * page_size() : sizeof copy;
        look_at(mapped, bytes, where);
        munmap(mapped, sizeof copy);
    }
    memset(copy, 0, sizeof copy);
}

static void look_into_descriptors(void)
{
    char where[64];
    stage = "through descriptors";
    for (int descriptor = 0; descriptor <= 1024; descriptor++) {
        struct stat status;
        if (fstat(descriptor, &status) != 0 || descriptor == pipe_ends[0] || descriptor == pipe_ends[1])
            continue;
        snprintf(where, sizeof where, "descriptor %d", descriptor);
        if (S_ISREG(status.st_mode)) {
            off_t place = lseek(descriptor, 0, SEEK_CUR);
            look_into(descriptor, where);
            lseek(descriptor, place, SEEK_SET);
        }
        if (S_ISDIR(status.st_mode))
            seen("a folder is open as %s", where);
        if (S_ISSOCK(status.st_mode)) {
            /* The worker sends no more messages and no descriptors, and this process cannot use sendmsg. */
            unsigned char bytes[4096], space[1024];
            struct iovec part = { bytes, sizeof bytes };
            struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
            ssize_t got = recvmsg(descriptor, &message, MSG_DONTWAIT);
            if (got > 0)
                look_at(bytes, (size_t)got, where);
            if (got >= 0 && message.msg_controllen != 0)
                seen("descriptors arrive through %s", where);
            message.msg_control = NULL;
            message.msg_controllen = 0;
            part.iov_len = 1;
            if (sendmsg(descriptor, &message, MSG_DONTWAIT) >= 0)
                seen("sendmsg works on %s", where);
        }
    }
}

static void look_into_path(const char *path)
{
    static unsigned char copy[65536];
    stage = "through a path";
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) {
        ssize_t got;
        while ((got = read(descriptor, copy, sizeof copy)) > 0)
            look_at(copy, (size_t)got, path);
        lseek(descriptor, 0, SEEK_SET);
        look_into(descriptor, path);
        close(descriptor);
    }
    if (open(path, O_RDWR) >= 0)
        seen("%s opens for writing", path);
    memset(copy, 0, sizeof copy);
}

static void may_not_open(const char *path)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0)
        seen("%s opens", path);
    descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor >= 0)
        seen("%s opens as a folder", path);
    look_into_path(path);
}

static void look_into_paths(void)
{
    static const char *const own[] = {
        "mem", "maps", "smaps", "pagemap", "environ", "auxv", "stack", "cwd", "root", "fd", "fdinfo", "map_files",
        "task", "ns", "mountinfo", "numa_maps", "cmdline", "status",
    };
    char path[4096];
    stage = "through a path";
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        for (int who = 0; who < 3; who++) {
            if (who == 2)
                snprintf(path, sizeof path, "/proc/%d/%s", (int)getpid(), own[i]);
            else
                snprintf(path, sizeof path, "/proc/%s/%s", who == 0 ? "self" : "thread-self", own[i]);
            may_not_open(path);
        }
    }
    for (int descriptor = 0; descriptor <= 64; descriptor++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        if (descriptor == 1 || descriptor == 2) {
            look_into_path(path); /* memory files of this process, whose paths cannot be forbidden */
            continue;
        }
        if (descriptor == pipe_ends[0] || descriptor == pipe_ends[1])
            continue;
        may_not_open(path);
    }
    for (size_t i = 0; i < sizeof capture_paths / sizeof *capture_paths; i++) {
        may_not_open(capture_paths[i]);
        /* Try other names of the same file. */
        snprintf(path, sizeof path, "/proc/self/root%s", capture_paths[i]);
        may_not_open(path);
        snprintf(path, sizeof path, "/proc/1/root%s", capture_paths[i]);
        may_not_open(path);
        const char *name = strrchr(capture_paths[i], '/') + 1;
        may_not_open(name);
        snprintf(path, sizeof path, "/proc/self/cwd/%s", name);
        may_not_open(path);
        snprintf(path, sizeof path, "%.*s", (int)(name - capture_paths[i]), capture_paths[i]);
        may_not_open(path);
    }
    may_not_open(".");
    may_not_open("/");
    may_not_open("/proc");
    may_not_open("/tmp");
    may_not_open("/dev/shm");
    look_into_path("/proc/self/exe");
}

/* Tries to open maps of the file by name: /proc/self/map_files/FROM-TO. */
static void look_into_map_files(const OptTensor *input)
{
    char path[128];
    uintptr_t page = page_size(), data = (uintptr_t)input->data, end = data + (uintptr_t)elements(input) * 4;
    for (int lead = 0; lead <= 1; lead++)
        for (int tail = 0; tail <= 1; tail++) {
            uintptr_t from = data / page * page + (uintptr_t)lead * page;
            uintptr_t to = end / page * page + (uintptr_t)tail * page;
            snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)from, (unsigned long)to);
            may_not_open(path);
        }
}

RUN
{
    const OptTensor *input = input_of(args);
    if (wanted_count == 0) {
        if (pipe(pipe_ends) != 0)
            seen("no pipe to look through");
        for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
            want(hidden[i]);
#ifdef CONTROL_MEMORY
        want(in_input);
#endif
#ifdef CONTROL_DESCRIPTOR
        want(in_descriptor);
        for (int i = 0; i < MARKER_BYTES; i++)
            dprintf(2, "%c", in_descriptor[i] ^ HIDDEN);
        look_into_descriptors();
#endif
#ifdef CONTROL_PATH
        static unsigned char of_the_cache[MARKER_BYTES]; /* contains "glibc-ld.so.cache1.1" */
        int cache = open("/etc/ld.so.cache", O_RDONLY);
        if (cache < 0 || pread(cache, of_the_cache, MARKER_BYTES, 64) != MARKER_BYTES)
            return 77; /* another C library */
        close(cache);
        for (int i = 0; i < MARKER_BYTES; i++)
            of_the_cache[i] ^= HIDDEN;
        want(of_the_cache);
        look_into_path("/etc/ld.so.cache");
#endif
#ifdef CONTROL_AROUND
        OptTensor half = *input;
        int64_t shape[1] = { elements(input) / 2 };
        half.ndim = 1;
        half.shape = shape;
        look_around("before anything", &half);
#endif
    }
    look_both("before anything", input);
    look_into_descriptors();
    look_into_map_files(input);
    look_into_paths();
    scan_after_changes(input);
    return softmax(args, n);
}
