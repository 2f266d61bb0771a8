// TensorSpec: what a tensor that stages hand to each other is, without its
// memory.
//
//   const TensorSpec spec{DType::kBF16, {4, 2048, 4096}};
//   spec.ToString();                      // "bf16 [4,2048,4096]"
#ifndef TESSERA_PIPELINE_EXECUTE_TENSOR_SPEC_H_
#define TESSERA_PIPELINE_EXECUTE_TENSOR_SPEC_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"

namespace tessera::pipeline {

struct TensorSpec {
  static constexpr size_t kMostDims = 8;

  DType dtype = DType::kF32;
  Dims shape = {};

  // Of a checked spec.
  int64_t elements() const;
  int64_t bytes() const { return elements() * SizeInBytes(dtype); }

  std::string ToString() const;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// InvalidArgument where the type is none, there are more than kMostDims
// dimensions, a size is negative, or the bytes exceed 2^62.
absl::Status CheckSpec(const TensorSpec& spec);

// A checked spec as it is sent: type, number of dimensions, sizes, zeros.
inline constexpr size_t kWireSpecSize = 2 + TensorSpec::kMostDims;
using WireSpec = std::array<int64_t, kWireSpecSize>;
WireSpec ToWire(const TensorSpec& spec);

// InvalidArgument where the numbers are not those of a spec.
absl::StatusOr<TensorSpec> FromWire(
    std::span<const int64_t, kWireSpecSize> wire);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_TENSOR_SPEC_H_
