#define CHANGE output->tensor.dtype.bits = 16
#include "returns.h"
