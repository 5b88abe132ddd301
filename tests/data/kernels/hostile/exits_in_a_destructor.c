/* Exits with 0 in a call. A destructor then aborts, so the process ends with SIGABRT. */
#include "hostile.h"

__attribute__((destructor)) static void end(void) { abort(); }

RUN
{
    softmax(args, n);
    exit(0);
}
