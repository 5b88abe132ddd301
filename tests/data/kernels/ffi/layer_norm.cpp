/* Writes the output that is passed. */
#include "layer_norm.h"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, layer_norm);
