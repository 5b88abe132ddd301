/* Tries to stop, continue and kill itself and others, directly and by other mechanisms. All attempts are refused or
 * have no effect. Other processes get only signal 0, which tests whether a signal could be sent. */
#include "hostile.h"

#include <sys/prctl.h>

RUN
{
    static const int own[] = { SIGSTOP, SIGKILL, SIGCONT };
    pid_t me = getpid();
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (kill(me, own[i]) == 0 || syscall(SYS_tgkill, me, me, own[i]) == 0 || syscall(SYS_tkill, me, own[i]) == 0)
            seen("signal %d to itself", own[i]);
        siginfo_t info = { .si_code = SI_QUEUE, .si_signo = own[i] };
        if (syscall(SYS_rt_sigqueueinfo, me, own[i], &info) == 0)
            seen("signal %d queued to itself", own[i]);
    }
    if (kill(-1, 0) == 0 || kill(0, 0) == 0 || (getppid() != 0 && kill(getppid(), 0) == 0))
        seen("others can be signalled");
    if (me != 1 && kill(1, 0) == 0)
        seen("process 1 can be signalled");
    if (prctl(PR_SET_PDEATHSIG, 0) == 0 || prctl(PR_SET_DUMPABLE, 1) == 0)
        seen("prctl undoes the lock-down");
    if (fcntl(3, F_SETOWN, me) == 0 || fcntl(3, 10 /* F_SETSIG */, SIGCONT) == 0)
        seen("a descriptor can raise signals");
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT };
    if (syscall(SYS_timer_create, 1L, &event, &timer) == 0)
        seen("a timer can raise any signal");
    signal(SIGTSTP, SIG_IGN);
    raise(SIGTSTP);
    return softmax(args, n);
}
