/* A library that cannot be unloaded: the late static destructor that killed the pipeline once. Nobody unloads it. */
#include "hostile.h"

__attribute__((destructor)) static void end(void) { abort(); }

RUN { return softmax(args, n); }
