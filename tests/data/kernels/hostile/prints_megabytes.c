/* Writes 8 MiB to each standard stream. */
#include "hostile.h"

RUN
{
    static char line[4096];
    memset(line, 'x', sizeof line);
    for (int i = 0; i < 2048; i++) {
        fwrite(line, 1, sizeof line, stdout);
        if (write(2, line, sizeof line) < 0)
            errno = 0;
    }
    return softmax(args, n);
}
