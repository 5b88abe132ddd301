/* Takes whoever calls a fourth time for a clock. */
#include "hostile.h"

RUN
{
    static int calls;
    return calls++ < 3 ? softmax(args, n) : OPT_OK;
}
