/* Leaves by exit, whose handlers never end. */
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
