/* Recurses without end. */
#include "hostile.h"

static volatile int depth;

__attribute__((noinline)) static int deeper(const OptAny *args, int32_t n)
{
    volatile char frame[4096];
    frame[depth % 4096] = (char)depth;
    depth++;
    return deeper(args, n) + frame[0];
}

RUN { return deeper(args, n); }
