/* Repeatedly writes garbage to the whole control page, including the number of the command. */
#include "hostile.h"

RUN
{
    volatile ControlPage *page = control_page();
    if (page == NULL)
        return 99;
    for (uint32_t i = 0;; i += 0x01010101)
        memset((void *)page, (int)(i | 0x80), sizeof *page);
}
