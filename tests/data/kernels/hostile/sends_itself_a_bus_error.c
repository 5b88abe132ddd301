/* Sends itself the signal that a page of an input could not be read, as the kernel would, and exits. */
#include "hostile.h"

RUN
{
    static int calls;
    if (++calls < 2)
        return softmax(args, n);
    siginfo_t info = {0};
    info.si_signo = SIGBUS;
    info.si_code = BUS_ADRERR;
    info.si_addr = input_of(args)->data;
    syscall(SYS_rt_sigqueueinfo, getpid(), SIGBUS, &info);
    _exit(0);
}
