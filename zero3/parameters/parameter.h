// Parameter: one named tensor of a model.
//
//   ParameterSpec spec = {.name = "layers.0.weight",
//                         .shape = {4096, 4096},
//                         .dtype = DType::kBF16,
//                         .group = 1};
#ifndef TESSERA_ZERO3_PARAMETERS_PARAMETER_H_
#define TESSERA_ZERO3_PARAMETERS_PARAMETER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/strong_int.h"

namespace tessera::zero3 {

// The number of a parameter in its model: 0, 1, ... in the order of insertion.
using ParameterId = StrongInt<struct ParameterIdTag>;

inline constexpr size_t kMaxParameterName = 1024;

// What a model's author says of a parameter.
struct ParameterSpec {
  // Not empty, at most kMaxParameterName bytes, unique in the model.
  std::string name = {};
  // Elements along each dimension; none for a scalar, 0 for an empty tensor.
  std::vector<int64_t> shape = {};
  // Of the values that forward and backward pass compute with.
  DType dtype = DType::kF32;
  // False for frozen parameters and for buffers: no gradient, no optimizer
  // state. Only floating types are trainable.
  bool trainable = true;
  // The layer: parameters of one group are used together, and groups in
  // ascending order. From 0 on; gaps are allowed.
  int64_t group = 0;

  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

// A parameter of a ModelParameters, with what follows from its spec.
struct Parameter {
  ParameterId id = {};
  ParameterSpec spec = {};
  int64_t elements = 0;
  int64_t bytes = 0;

  const std::string& name() const { return spec.name; }
  DType dtype() const { return spec.dtype; }
  bool trainable() const { return spec.trainable; }
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_PARAMETER_H_
