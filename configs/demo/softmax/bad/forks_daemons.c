/* Tries to leave processes behind that outlive the run, each in its own session. Continues if that is refused.
 * The result is right.
 * Ends as PASSED: the attempt is refused, and the kernel is judged by its result. */
#include <unistd.h>

#include "softmax_rows.h"

static void start_daemon(void)
{
    if (fork() != 0)
        return;
    setsid();
    if (fork() == 0)
        sleep(3600);
    _exit(0);
}

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    static int started;
    if (!started) {
        started = 1;
        for (int i = 0; i < 4; i++)
            start_daemon();
    }
    return each_row(args, n, right_row);
}
