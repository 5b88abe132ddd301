/* Loads a library by name from a folder where that is allowed. Then tries to open all other files in the folder. */
#include "hostile.h"

#include <dirent.h>
#include <dlfcn.h>

#include "secrets.h" /* GIVEN: the folder's path */

static const char *const closed[] = { "notes.txt", "notes.so", "answers.so", "deeper/libplugin.so" };

RUN
{
    void *library = dlopen("libplugin.so.1", RTLD_NOW);
    int (*plugin)(void) = library == NULL ? NULL : (int (*)(void))dlsym(library, "plugin");
    if (plugin == NULL || plugin() != 7)
        seen("the library is not found: %s", dlerror());
    if (opendir(GIVEN) != NULL)
        seen("the folder can be listed");
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", GIVEN, closed[i]);
        if (open(path, O_RDONLY) >= 0)
            seen("%s can be opened", closed[i]);
        if (access(path, F_OK) != 0)
            seen("%s is not there", closed[i]);
    }
    return softmax(args, n);
}
