/* Allocates one workspace after another, fills each and frees none. Aborts when an allocation is refused.
 * Ends as HOST_MEMORY_LIMIT, because the refused allocation was recorded or because the supervisor kills it. */
#include <stdlib.h>
#include <string.h>

#include "opt_candidate.h"

enum { WORKSPACE_BYTES = 16 << 20 };

static void *volatile last_workspace; /* keeps compilers from removing the allocation */

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    (void)ret;
    (void)args;
    (void)n;
    for (;;) {
        void *workspace = malloc(WORKSPACE_BYTES);
        if (workspace == NULL)
            abort();
        memset(workspace, 1, WORKSPACE_BYTES);
        last_workspace = workspace;
    }
}
