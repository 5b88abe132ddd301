#include "returns.h"
