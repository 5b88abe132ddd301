/* Truncates, seeks and punches holes in the files of the standard streams, and replaces descriptors with a pipe. */
#include "hostile.h"

RUN
{
    int ends[2];
    lseek(1, 1 << 30, SEEK_SET);
    lseek(2, -1, SEEK_END);
    ftruncate(1, 0);
    ftruncate(2, 1 << 30);
    fallocate(1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
    fcntl(1, F_SETFL, O_APPEND | O_NONBLOCK | O_ASYNC);
    if (pipe(ends) == 0)
        for (int descriptor = 0; descriptor < 64; descriptor++)
            if (descriptor != ends[0] && descriptor != ends[1])
                dup2(ends[1], descriptor);
    return softmax(args, n);
}
