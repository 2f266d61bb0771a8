// The C++ part of tessera_torch.zero: a ShardedState whose values and gradients
// are torch tensors.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_ZERO_H_
#define TESSERA_TOOLS_PYTHON_TORCH_ZERO_H_

#include <pybind11/pybind11.h>

namespace tessera::torch_backend {

void BindZero(pybind11::module_& module);

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_ZERO_H_
