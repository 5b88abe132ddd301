/* Sends itself the SIGBUS that the operating system sends if a page of an input cannot be read, and exits. */
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
