/* Marks its call as done before it has computed anything, and hangs. */
#include "hostile.h"

RUN
{
    ControlPage *page = control_page();
    if (page == NULL)
        return 99;
    page->result = 0;
    page->returned_value = 0;
    page->calls_done = page->calls;
    page->claimed_ns = 1;
    page->done = page->command;
    for (;;)
        pause();
}
