/* Includes headers of its own folder and of a subfolder, as kernels do. */
#include "hostile.h"
#include "parts/scale.h"

RUN { return softmax(args, n) + scaled(0); }
