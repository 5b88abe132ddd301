/* Does its work and nothing else: stands between the others, to show that they left the workers as they were. */
#include "hostile.h"

RUN { return softmax(args, n); }
