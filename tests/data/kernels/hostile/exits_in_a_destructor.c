/* Exits with 0 from a call; a destructor makes that a death by abort. */
#include "hostile.h"

__attribute__((destructor)) static void end(void) { abort(); }

RUN
{
    softmax(args, n);
    exit(0);
}
