/* Jumps from a call into its constructor, which has already returned. */
#include "hostile.h"

#include <setjmp.h>

static jmp_buf loading;
static volatile int jumps;

__attribute__((constructor)) static void keep(void) { setjmp(loading); }

RUN
{
    (void)args;
    (void)n;
    if (jumps++ < 3)
        longjmp(loading, 1);
    abort();
}
