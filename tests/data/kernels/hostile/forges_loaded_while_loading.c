/* Reports that it is loaded, while its constructor never ends. */
#include "hostile.h"

#include <sys/socket.h>

__attribute__((constructor)) static void forge(void)
{
    static struct { uint32_t kind, length; char text[2048]; } reply = { 1, 0, "" };
    send(3, &reply, sizeof reply, MSG_NOSIGNAL);
    for (;;)
        pause();
}

RUN { return softmax(args, n); }
