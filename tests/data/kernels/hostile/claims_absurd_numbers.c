/* Computes the right result, then reports that it made four billion calls in no time. */
#include "hostile.h"

RUN
{
    int code = softmax(args, n);
    ControlPage *page = control_page();
    if (page == NULL)
        return 99;
    page->result = code;
    page->calls_done = UINT32_MAX;
    page->phase = 0xdead;
    page->fault_signal = page->fault_place = page->fault_index = UINT32_MAX;
    page->fault_address = page->claimed_ns = page->refused_bytes = UINT64_MAX;
    page->done = page->command;
    for (;;)
        pause();
}
