// An exception that nobody catches: the process ends, and what it said is kept.
#include <stdexcept>

#include "opt_candidate.h"

OPT_EXPORT int run(void *, const OptAny *, int32_t, OptAny *)
{
    throw std::runtime_error("a tile of 0 rows");
}
