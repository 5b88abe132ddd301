/* A library that aborts in a destructor when it is unloaded. A runner never unloads a library. */
#include "hostile.h"

__attribute__((destructor)) static void end(void) { abort(); }

RUN { return softmax(args, n); }
