#define PLAN 3
#include "returns.h"
