/* Reports invented protections while it is loaded, then sends nothing more. */
#include "hostile.h"

#include <sys/socket.h>

__attribute__((constructor)) static void forge(void)
{
    static struct { uint32_t kind, length; char text[2048]; } reply = { 5, 21, "+forged_rung: by a cheat" };
    for (int i = 0; i < 3; i++)
        send(3, &reply, sizeof reply, MSG_NOSIGNAL);
    for (;;)
        pause();
}

RUN { return softmax(args, n); }
