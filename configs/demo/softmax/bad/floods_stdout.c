/* A forgotten debugging print writes 118 MB on the first call. The result is right.
 * Ends as PASSED, with output_truncated set. */
#include <stdio.h>

#include "softmax_rows.h"

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    static int printed;
    if (!printed) {
        printed = 1;
        for (int line = 0; line < 2000000; line++)
            printf("softmax: row %8d looks fine, going on to the next one\n", line % 1000);
        fflush(stdout);
    }
    return each_row(args, n, right_row);
}
