/* An honest kernel that runs between the others, to show that they did not harm the workers. */
#include "hostile.h"

RUN { return softmax(args, n); }
