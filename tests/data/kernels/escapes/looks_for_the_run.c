/* Tries to open the files of its own run by many names, and searches all of its memory, including environment and
 * arguments, for the run's seeds. CONTROL puts a seed into memory, to show that the search would find it. */
#include "hostile.h"

#include "secrets.h" /* PATHS: {"…"}; SEEDS: {{length, {bytes…}}}, each byte hidden by HIDDEN */

static const char *const paths[] = PATHS;
static const struct { size_t length; unsigned char bytes[32]; } seeds[] = SEEDS;

static void compare(uintptr_t at, const unsigned char *bytes, size_t count, void *context)
{
    (void)context;
    for (size_t seed = 0; seed < sizeof seeds / sizeof *seeds; seed++) {
        size_t length = seeds[seed].length;
        for (size_t i = 0; i + length <= count; i++) {
            size_t same = 0;
            while (same < length && (bytes[i + same] ^ HIDDEN) == seeds[seed].bytes[same])
                same++;
            if (same == length)
                seen("seed %zu at %p", seed, (void *)(at + i));
        }
    }
}

static void look_for_files(void)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (open(paths[i], O_RDONLY) >= 0)
            seen("%s can be opened", paths[i]);
        int handle = open(paths[i], O_PATH);
        char name[64];
        snprintf(name, sizeof name, "/proc/self/fd/%d", handle);
        if (handle >= 0 && (open(name, O_RDONLY) >= 0 || openat(handle, ".", O_RDONLY) >= 0))
            seen("%s can be opened by a handle", paths[i]);
        if (handle >= 0)
            close(handle);
    }
}

static void look_into_memory(void)
{
#ifdef CONTROL
    static volatile unsigned char left[32];
    for (size_t i = 0; i < seeds[0].length; i++)
        left[i] = seeds[0].bytes[i] ^ HIDDEN;
#endif
    int ends[2];
    if (pipe(ends) != 0)
        return;
    walk(ends, LOWEST_ADDRESS, highest_address(), compare, NULL);
    close(ends[0]);
    close(ends[1]);
}

RUN
{
    static int looked;
    if (!looked++) {
        look_for_files();
        look_into_memory();
    }
    return softmax(args, n);
}
