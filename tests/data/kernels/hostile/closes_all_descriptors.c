/* Closes all open descriptors, then opens pipes under the same numbers. */
#include "hostile.h"

RUN
{
    for (int descriptor = 0; descriptor <= 1024; descriptor++)
        close(descriptor);
    int ends[2];
    while (pipe(ends) == 0) {}
    return softmax(args, n);
}
