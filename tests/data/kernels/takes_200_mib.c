/* A correct matmul that keeps 200 MiB from its first call on, like a candidate with a workspace. */
#include <stdlib.h>
#include <string.h>

#define run without_workspace
#include "naive/matmul.c"
#undef run

int run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    static char *workspace;
    const size_t bytes = (size_t)200 << 20;
    if (workspace == NULL) {
        workspace = malloc(bytes);
        if (workspace == NULL)
            return OPT_BAD_ARGUMENTS;
        memset(workspace, 1, bytes);
    }
    return without_workspace(self, args, n, ret);
}
