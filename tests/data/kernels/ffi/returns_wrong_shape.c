#define CHANGE output->shape[0]++
#include "returns.h"
