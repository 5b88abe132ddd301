/* Honest through verification and warm-up's first calls, then computes one call in two. */
#include "hostile.h"

RUN
{
    static int calls;
    calls++;
    return calls < 8 || calls % 2 == 0 ? softmax(args, n) : OPT_OK;
}
