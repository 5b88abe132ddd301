/* Uses a thread-local variable that is larger than its memory. The dynamic linker allocates it at its first use, and ends
 * the process if it cannot. */
#include "hostile.h"

static _Thread_local volatile char large[(size_t)1 << 44];

RUN
{
    (void)args;
    (void)n;
    large[0] = 1;
    return 5;
}
