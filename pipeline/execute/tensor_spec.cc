#include "pipeline/execute/tensor_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 62;

}  // namespace

int64_t TensorSpec::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string TensorSpec::ToString() const {
  return absl::StrCat(DTypeName(dtype), " ", DimsToString(shape));
}

absl::Status CheckSpec(const TensorSpec& spec) {
  if (!IsValid(spec.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of type number ",
                                                   static_cast<int>(spec.dtype),
                                                   ", which is none"));
  }
  if (spec.shape.size() > TensorSpec::kMostDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", spec.shape.size(), " dimensions; at most ",
                     TensorSpec::kMostDims, " are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t count, ElementCount(spec.shape),
      Annotate(_, absl::StrCat("a tensor ", spec.ToString())));
  if (count <= kMostBytes / SizeInBytes(spec.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor ", spec.ToString(), " is larger than 2^62 bytes"));
}

WireSpec ToWire(const TensorSpec& spec) {
  WireSpec wire = {};
  wire[0] = static_cast<int64_t>(spec.dtype);
  wire[1] = static_cast<int64_t>(spec.shape.size());
  std::copy(spec.shape.begin(), spec.shape.end(), wire.begin() + 2);
  return wire;
}

absl::StatusOr<TensorSpec> FromWire(
    std::span<const int64_t, kWireSpecSize> wire) {
  const auto dims = wire.subspan<2>();
  if (wire[0] < 0 || wire[0] >= static_cast<int64_t>(kAllDTypes.size()) ||
      wire[1] < 0 || wire[1] > static_cast<int64_t>(dims.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("no tensor is of type number ", wire[0], " with ", wire[1],
                     " dimensions"));
  }
  TensorSpec spec;
  spec.dtype = static_cast<DType>(wire[0]);
  spec.shape.assign(dims.begin(), dims.begin() + wire[1]);
  TESSERA_RETURN_IF_ERROR(CheckSpec(spec));
  const bool padded = std::all_of(dims.begin() + wire[1], dims.end(),
                                  [](int64_t size) { return size == 0; });
  if (padded) return spec;
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor ", spec.ToString(), " with more sizes than that"));
}

}  // namespace tessera::pipeline
