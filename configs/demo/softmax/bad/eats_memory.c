/* Asks for workspace after workspace, fills each and gives none back; aborts when one is refused.
 * Ends as HOST_MEMORY_LIMIT: by the refused size that is on record, or by the supervisor's kill. */
#include <stdlib.h>
#include <string.h>

#include "opt_candidate.h"

enum { WORKSPACE_BYTES = 16 << 20 };

static void *volatile last_workspace; /* kept, so that no compiler leaves the allocation out */

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
