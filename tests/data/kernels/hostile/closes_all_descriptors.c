/* Closes whatever is open, then fills the numbers again. */
#include "hostile.h"

RUN
{
    for (int descriptor = 0; descriptor <= 1024; descriptor++)
        close(descriptor);
    int ends[2];
    while (pipe(ends) == 0) {}
    return softmax(args, n);
}
