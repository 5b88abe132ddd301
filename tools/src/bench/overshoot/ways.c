/* Thirty ways of using up memory, one for each value of WAY. matrix.rs names the ways, and puts a definition of WAY in
 * front of this file. Each way begins 1.5 s after its call, so that a stall can begin first. Most end with an abort
 * when memory is refused. */
#include "hostile.h"

#include <pthread.h>
#include <time.h>

#define ENDLESS (1 << 26)
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define THREADS 8

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static void wait_ms(int64_t ms)
{
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000 < ms);
}

static char *map(size_t bytes, int protection, int flags)
{
    char *memory = mmap(NULL, bytes, protection, flags | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    return memory;
}

static char *given(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

#define WRITABLE (PROT_READ | PROT_WRITE)

static void *fill_maps(void *nothing)
{
    for (int i = 0; i < ENDLESS; i++)
        memset(map(MIB, WRITABLE, MAP_PRIVATE), 1, MIB);
    return nothing;
}

static void *fill_heap(void *nothing)
{
    for (int i = 0; i < ENDLESS; i++)
        memset(given(malloc(64 * KIB)), 1, 64 * KIB);
    return nothing;
}

static void *fill_tables(void *nothing)
{
    volatile char sum = 0;
    for (int i = 0; i < ENDLESS; i++) {
        char *memory = map(64 * MIB, PROT_READ, MAP_PRIVATE | MAP_NORESERVE);
        for (size_t at = 0; at < 64 * MIB; at += 2 * MIB)
            sum += memory[at];
    }
    return nothing;
}

static void by_threads(void *(*fill)(void *))
{
    pthread_t thread;
    for (int i = 1; i < THREADS && pthread_create(&thread, NULL, fill, NULL) == 0; i++)
        ;
    fill(NULL);
}

static void *fill_stack(void *nothing)
{
    volatile char frame[256 * KIB];
    memset((void *)(uintptr_t)frame, 1, sizeof frame);
    for (;;)
        pause();
    return nothing;
}

static int recurse(int depth)
{
    volatile char frame[16 * KIB];
    memset((void *)(uintptr_t)frame, depth, sizeof frame);
    return depth == ENDLESS ? 0 : recurse(depth + 1) + frame[depth % 16];
}

static void eat(void)
{
    char *memory = NULL;
    for (int i = 0; i < ENDLESS; i++) {
#if WAY == 0
        memset(given(malloc(16)), 1, 16);
#elif WAY == 1
        memset(given(malloc(64 * KIB)), 1, 64 * KIB);
#elif WAY == 2
        memset(given(malloc(4 * MIB)), 1, 4 * MIB);
#elif WAY == 3
        memset(given(calloc(MIB, 1)), 1, MIB);
#elif WAY == 4
        memory = given(realloc(memory, ((size_t)i + 1) * 8 * MIB));
        memset(memory + (size_t)i * 8 * MIB, 1, 8 * MIB);
#elif WAY == 5
        void *aligned = NULL;
        if (posix_memalign(&aligned, 2 * MIB, 2 * MIB) != 0)
            abort();
        memset(aligned, 1, 2 * MIB);
#elif WAY == 6
        memory = sbrk(4 << 20);
        if (memory == (char *)-1)
            abort();
        memset(memory, 1, 4 * MIB);
#elif WAY == 7
        map(page_size(), WRITABLE, MAP_PRIVATE)[0] = 1;
#elif WAY == 8
        memset(map(64 * MIB, WRITABLE, MAP_PRIVATE), 1, 64 * MIB);
#elif WAY == 9
        memset(map(4 * MIB, WRITABLE, MAP_PRIVATE | MAP_NORESERVE), 1, 4 * MIB);
#elif WAY == 10
        map(4 * MIB, WRITABLE, MAP_PRIVATE | MAP_POPULATE);
#elif WAY == 11
        memory = map(32 * MIB, WRITABLE, MAP_PRIVATE);
        madvise(memory, 32 * MIB, MADV_HUGEPAGE);
        memset(memory, 1, 32 * MIB);
#elif WAY == 12
        memory = map(4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE);
        if (mprotect(memory, 4 * MIB, WRITABLE) != 0)
            abort();
        memset(memory, 1, 4 * MIB);
#elif WAY == 13
        memory = i == 0 ? map(MIB, WRITABLE, MAP_PRIVATE)
                        : mremap(memory, (size_t)i * MIB, ((size_t)i + 1) * MIB, MREMAP_MAYMOVE);
        if (memory == MAP_FAILED)
            abort();
        memset(memory + (size_t)i * MIB, 1, MIB);
#elif WAY == 14
        memory = map(4 * MIB, WRITABLE, MAP_PRIVATE);
        if (madvise(memory, 4 * MIB, MADV_POPULATE_WRITE) != 0)
            memset(memory, 1, 4 * MIB);
#elif WAY == 15
        memset(map(32 * MIB, WRITABLE, MAP_SHARED), 1, 32 * MIB);
#elif WAY == 16
        map(4 * MIB, WRITABLE, MAP_SHARED | MAP_POPULATE);
#elif WAY == 17
        fill_tables(NULL);
#elif WAY == 18
        by_threads(fill_tables);
#elif WAY == 19
        by_threads(fill_maps);
#elif WAY == 20
        by_threads(fill_heap);
#elif WAY == 21
        recurse(0);
#elif WAY == 22
        pthread_t thread;
        if (pthread_create(&thread, NULL, fill_stack, NULL) != 0)
            abort();
#elif WAY == 23
        int ends[2];
        char text[4096] = { 1 };
        if (pipe(ends) != 0)
            abort();
        memory = map(64 * KIB, WRITABLE, MAP_PRIVATE);
        for (size_t at = 0; at < 64 * KIB; at += sizeof text)
            if (write(ends[1], text, sizeof text) != sizeof text ||
                read(ends[0], memory + at, sizeof text) != sizeof text)
                abort();
        close(ends[0]);
        close(ends[1]);
#elif WAY == 24
        wait_ms(1);
        memset(map(MIB, WRITABLE, MAP_PRIVATE), 1, MIB);
#elif WAY == 25
        if (i % 32 == 31)
            wait_ms(100);
        memset(map(4 * MIB, WRITABLE, MAP_PRIVATE), 1, 4 * MIB);
#elif WAY == 26
        memory = map(16 * MIB, WRITABLE, MAP_PRIVATE);
        memset(memory, 1, 16 * MIB);
        munmap(memory + 4 * MIB, 4 * MIB);
#elif WAY == 27
        memory = map(16 * MIB, WRITABLE, MAP_PRIVATE);
        for (size_t at = 0; at < 16 * MIB; at += page_size())
            memory[at] = 1;
#elif WAY == 28
        wait_ms(1);
        memory = map(64 * MIB, PROT_READ, MAP_PRIVATE | MAP_NORESERVE);
        for (size_t at = 0; at < 64 * MIB; at += 2 * MIB)
            *(volatile char *)(memory + at);
#elif WAY == 29
        int file = (int)syscall(SYS_memfd_create, "ways", 0L);
        if (file < 0 || ftruncate(file, 4 << 20) != 0)
            abort();
        memset(mmap(NULL, 4 * MIB, WRITABLE, MAP_SHARED, file, 0), 1, 4 * MIB);
#endif
    }
    (void)memory;
    (void)fill_maps;
    (void)fill_heap;
    (void)fill_tables;
    (void)by_threads;
    (void)fill_stack;
    (void)recurse;
}

RUN
{
    (void)args;
    (void)n;
    wait_ms(1500);
    eat();
    return 5;
}
