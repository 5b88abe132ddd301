// Throws an exception that is not caught. The process ends, and its message is kept.
#include <stdexcept>

#include "opt_candidate.h"

OPT_EXPORT int run(void *, const OptAny *, int32_t, OptAny *)
{
    throw std::runtime_error("a tile of 0 rows");
}
