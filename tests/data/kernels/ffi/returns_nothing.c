#define CHANGE end(output, 0); return OPT_OK
#include "returns.h"
