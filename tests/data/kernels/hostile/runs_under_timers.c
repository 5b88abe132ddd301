/* Handles an alarm every millisecond, and sleeps briefly in each call. */
#include "hostile.h"

#include <sys/time.h>
#include <time.h>

static volatile int alarms;
static void count(int number) { alarms += number != 0; }

RUN
{
    struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
    struct timespec nap = { 0, 100000 };
    struct sigaction action = { .sa_handler = count, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    nanosleep(&nap, NULL);
    return softmax(args, n);
}
