/* Calls exit, and its handler never returns. */
#include "hostile.h"

static void hang(void)
{
    for (;;)
        pause();
}

RUN
{
    atexit(hang);
    exit(softmax(args, n));
}
