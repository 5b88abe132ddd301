/* Sends frames of many lengths and kinds while it is loaded. A normal runner never sends such frames. */
#include "hostile.h"

#include <sys/socket.h>

__attribute__((constructor)) static void forge(void)
{
    static unsigned char bytes[65536];
    for (size_t length = 1; length <= sizeof bytes; length *= 2) {
        memset(bytes, (int)length, length);
        send(3, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

RUN { return softmax(args, n); }
