/* Computes three calls. Assumes that later calls are timed, and does nothing in them. */
#include "hostile.h"

RUN
{
    static int calls;
    return calls++ < 3 ? softmax(args, n) : OPT_OK;
}
