/* Honest during verification and the first warm-up calls, then computes every second call. */
#include "hostile.h"

RUN
{
    static int calls;
    calls++;
    return calls < 8 || calls % 2 == 0 ? softmax(args, n) : OPT_OK;
}
