/* Computes the right result, but unmaps the page through which its runner would report it. */
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
