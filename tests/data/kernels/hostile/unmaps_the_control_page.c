/* Right, but its runner has no page to say so any more. */
#include "hostile.h"

RUN
{
    int code = softmax(args, n);
    ControlPage *page = control_page();
    if (page == NULL)
        return 99;
    munmap(page, page_size());
    return code;
}
