// A table of kernels that finds its name taken and gives up, in a static constructor: the process dies while the
// library is being loaded, before anything was called.
// Ends as LOAD_ERROR.
#include <cstdlib>

#include "opt_candidate.h"

namespace {

struct Registration {
    explicit Registration(bool name_is_free)
    {
        if (!name_is_free)
            std::abort();
    }
};

volatile bool softmax_is_free = false;
Registration registration(softmax_is_free);

} // namespace

extern "C" int run(void *, const OptAny *, int32_t, OptAny *)
{
    return OPT_UNSUPPORTED;
}
