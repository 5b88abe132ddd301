/* Reports, as if it were the runner, that the runner could not be set up, which would be the worker's fault. */
#include "hostile.h"

#include <sys/socket.h>

__attribute__((constructor)) static void forge(void)
{
    static struct { uint32_t kind, length; char text[2048]; } reply = { 4, 28, "mapping an input at offset 0" };
    send(3, &reply, sizeof reply, MSG_NOSIGNAL);
    _exit(2);
}

RUN { return softmax(args, n); }
