/* Has TARGET, a path in quotes, read by the preprocessor. What is not C shows in the compiler's messages. */
#include "hostile.h"
#include TARGET

RUN { return softmax(args, n); }
