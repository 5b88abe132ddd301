// A static constructor registers the kernel, finds that the name is taken, and aborts. The process dies while the
// library is being loaded, before the kernel is called.
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
