/* The common parts of the hostile kernels in this folder: a correct softmax, and functions that search memory.
 *
 * Each kernel takes the arguments of softmax along the last axis (input, dim, _stacklevel, dtype | output, float32) and
 * attempts something hostile. If the attempt must have no effect, the kernel computes the right result and ends as
 * PASSED. If it has an effect, `seen` reports it on standard error and aborts, so the summary of the run shows it. */
#ifndef HOSTILE_H
#define HOSTILE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "opt_candidate.h"

#define RUN int run(void *self __attribute__((unused)), const OptAny *args, int32_t n, \
                    OptAny *ret __attribute__((unused)))

static inline const OptTensor *input_of(const OptAny *args) { return (const OptTensor *)args[0].value.v_ptr; }
static inline const OptTensor *output_of(const OptAny *args) { return (const OptTensor *)args[4].value.v_ptr; }

static inline int64_t elements(const OptTensor *tensor)
{
    int64_t count = 1;
    for (int axis = 0; axis < tensor->ndim; axis++)
        count *= tensor->shape[axis];
    return count;
}

static inline void softmax_rows(const float *x, float *y, int64_t width, int64_t rows)
{
    for (; rows > 0; rows--, x += width, y += width) {
        float largest = x[0], sum = 0;
        for (int64_t i = 1; i < width; i++)
            largest = x[i] > largest ? x[i] : largest;
        for (int64_t i = 0; i < width; i++)
            sum += y[i] = expf(x[i] - largest);
        for (int64_t i = 0; i < width; i++)
            y[i] /= sum;
    }
}

/* Computes the softmax of all rows. */
static inline int softmax(const OptAny *args, int32_t n)
{
    if (n != 5 || args[0].type_index != OPT_TENSOR)
        return 1;
    const OptTensor *input = input_of(args);
    int64_t width = input->shape[input->ndim - 1];
    softmax_rows(input->data, output_of(args)->data, width, elements(input) / width);
    return OPT_OK;
}

/* Reports an effect and ends the process. */
static inline void seen(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("SEEN: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    fflush(stderr);
    abort();
}

static inline uintptr_t page_size(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

/* Returns whether anything is mapped in [from, to). The operating system returns EEXIST before it checks any limit, so
 * every other result means that nothing is mapped. */
static inline int occupied(uintptr_t from, uintptr_t to)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    long at = syscall(SYS_mmap, from, to - from, PROT_NONE, flags, -1, 0L);
    if (at != -1) {
        munmap((void *)at, to - from);
        return (uintptr_t)at != from; /* an old Linux that ignores the flag maps it elsewhere */
    }
    return errno == EEXIST;
}

/* Copies up to a page of this process. Returns 0 instead of faulting if the page cannot be read. */
static inline size_t peek(int pipe_ends[2], uintptr_t at, void *copy, size_t bytes)
{
    ssize_t written = write(pipe_ends[1], (const void *)at, bytes);
    if (written <= 0)
        return 0;
    ssize_t got = read(pipe_ends[0], copy, (size_t)written);
    return got < 0 ? 0 : (size_t)got;
}

typedef void (*PageVisitor)(uintptr_t at, const unsigned char *bytes, size_t count, void *context);

/* Passes every readable page in [from, to) to `visit`, and returns their number. Works without /proc: halves the address
 * space repeatedly to find what is mapped. */
static inline size_t walk(int pipe_ends[2], uintptr_t from, uintptr_t to, PageVisitor visit, void *context)
{
    uintptr_t page = page_size();
    if (!occupied(from, to))
        return 0;
    size_t shown = 0;
    if (to - from <= 16 * page) {
        static unsigned char copy[65536];
        for (uintptr_t at = from; at < to; at += page) {
            size_t count = peek(pipe_ends, at, copy, page < sizeof copy ? page : sizeof copy);
            if (count != 0) {
                visit(at, copy, count, context);
                shown++;
            }
        }
        return shown;
    }
    uintptr_t middle = from + (to - from) / 2 / page * page;
    shown += walk(pipe_ends, from, middle, visit, context);
    return shown + walk(pipe_ends, middle, to, visit, context);
}

#define LOWEST_ADDRESS ((uintptr_t)1 << 16)

/* An address slightly below the end of user space. The stack is below it, and maps are above it only on request. A map
 * that ends above user space always fails, so testing one would wrongly show the addresses as free. */
static inline uintptr_t highest_address(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), end = 1;
    while (end <= here)
        end *= 2;
    return end - LOWEST_ADDRESS;
}

/* The control page, with the layout of worker/src/runner/control.rs. */
typedef struct ControlPage {
    volatile uint32_t command, entry, calls, first_slot, flags, spin_us, runner_waits, padding[9];
    volatile uint32_t done, worker_waits;
    volatile int32_t result;
    volatile uint32_t calls_done, returned_value, phase, fault_signal, fault_place, fault_index, padding_2;
    volatile uint64_t fault_address, claimed_ns, refused_bytes;
} ControlPage;

static inline void recognise(uintptr_t at, const unsigned char *bytes, size_t count, void *found)
{
    const ControlPage *page = (const ControlPage *)(const void *)bytes;
    const uint32_t calling = 5;
    if (count < sizeof *page || page->phase != calling || page->calls == 0 || page->command == 0 ||
        page->done + 1 != page->command)
        return;
    for (size_t i = sizeof *page; i < count; i++)
        if (bytes[i] != 0)
            return;
    *(ControlPage **)found = (ControlPage *)at;
}

/* Finds the page that this process shares with its worker. Works only during a call. */
static inline ControlPage *control_page(void)
{
    ControlPage *found = NULL;
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0)
        return NULL;
    walk(pipe_ends, LOWEST_ADDRESS, highest_address(), recognise, &found);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    if (found == NULL)
        fputs("the control page was not found\n", stderr);
    return found;
}

#endif
