/* Fills the runner's socket in its calls, shuts it down and closes it. The worker no longer reads from it. */
#include "hostile.h"

#include <sys/socket.h>

RUN
{
    static struct { uint32_t kind, length; char text[2048]; } reply = { 4, 2048, "trouble" };
    for (int i = 0; i < 1000; i++)
        send(3, &reply, sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(3, SHUT_RDWR);
    close(3);
    return softmax(args, n);
}
