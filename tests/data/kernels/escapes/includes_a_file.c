/* Includes the file TARGET (a path in quotes). If the file is not C, the compiler quotes it in its messages. */
#include "hostile.h"
#include TARGET

RUN { return softmax(args, n); }
