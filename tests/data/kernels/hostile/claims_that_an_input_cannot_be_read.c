/* Writes the report of a fault that only a damaged capture or disk can cause, and exits. Fixed numbers stand for SIGBUS
 * and for a place within the first input. */
#include "hostile.h"

RUN
{
    static int calls;
    if (++calls < 2)
        return softmax(args, n);
    ControlPage *page = control_page();
    if (page == NULL)
        return 1;
    page->fault_address = (uint64_t)(uintptr_t)input_of(args)->data;
    page->fault_index = 0;
    page->fault_place = 1;
    page->fault_signal = SIGBUS;
    _exit(0);
}
