#include "tensor_parallel/random/fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {
namespace {

// Draws are tried at numbers this far apart.
constexpr int64_t kMostElements = int64_t{1} << 56;
// The chance that none of 255 draws fits is below 1e-31.
constexpr uint64_t kMostDraws = 255;
constexpr double kLeastMass = 0.25;

absl::Status CheckTensor(const DistributedTensor& tensor) {
  if (!IsFloating(tensor.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "random numbers for ", tensor.ToString(),
        "; tensors of floating-point types can be filled with them"));
  }
  if (!IsHostAccessible(tensor.local().kind())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the CPU cannot write ", MemoryKindName(tensor.local().kind()),
        " memory; fill a tensor in host memory and transfer it"));
  }
  return absl::OkStatus();
}

absl::Status CheckNormal(double mean, double stddev) {
  if (std::isfinite(mean) && std::isfinite(stddev) && stddev >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("normal numbers of mean ", mean, " and standard deviation ",
                   stddev, "; both must be finite, the latter 0 or more"));
}

absl::StatusOr<bool> HoldsValues(const DistributedTensor& tensor) {
  for (const std::string& axis : tensor.spec().partial) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t coordinate,
                             tensor.mesh().CoordinateOf(tensor.rank(), axis));
    if (coordinate != 0) return false;
  }
  return true;
}

// Has `draw(first, values)` compute the numbers first, first + 1, ... in
// float64, and rounds them into the tensor.
template <typename Draw>
absl::Status FillWith(DistributedTensor& tensor, const Draw& draw) {
  TESSERA_ASSIGN_OR_RETURN(const bool holds_values, HoldsValues(tensor));
  const TensorView view = tensor.local().view();
  if (!holds_values) return tessera::Fill(view, 0.0f);
  const int64_t size = SizeInBytes(view.dtype());
  std::array<double, 1024> numbers;
  absl::Status status;
  ForEachRun(tensor.shard(), tensor.shape(), [&](const ShardRun& run) {
    for (int64_t done = 0; done < run.length;) {
      const int64_t count = std::min<int64_t>(
          run.length - done, static_cast<int64_t>(numbers.size()));
      const std::span<double> values(numbers.data(),
                                     static_cast<size_t>(count));
      draw(static_cast<uint64_t>(run.whole + done), values);
      status.Update(Convert(DType::kF64, std::as_bytes(values), view.dtype(),
                            std::span(view.data() + (run.local + done) * size,
                                      static_cast<size_t>(count * size))));
      done += count;
    }
  });
  return status;
}

// The share of all normal numbers that is below x.
double NormalCdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

}  // namespace

absl::Status FillUniform(const RandomKey& key, double low, double high,
                         DistributedTensor& tensor) {
  TESSERA_RETURN_IF_ERROR(CheckTensor(tensor));
  if (!std::isfinite(low) || !std::isfinite(high) || !(low <= high) ||
      !std::isfinite(high - low)) {
    return absl::InvalidArgumentError(
        absl::StrCat("uniform numbers in [", low, ", ", high,
                     "); the ends and their distance must be finite and in "
                     "order"));
  }
  const Philox random(key);
  return FillWith(tensor, [&](uint64_t first, std::span<double> values) {
    random.FillUniform(first, values);
    for (double& value : values) value = low + (high - low) * value;
  });
}

absl::Status FillNormal(const RandomKey& key, double mean, double stddev,
                        DistributedTensor& tensor) {
  TESSERA_RETURN_IF_ERROR(CheckTensor(tensor));
  TESSERA_RETURN_IF_ERROR(CheckNormal(mean, stddev));
  const Philox random(key);
  return FillWith(tensor, [&](uint64_t first, std::span<double> values) {
    random.FillNormal(first, values);
    for (double& value : values) value = mean + stddev * value;
  });
}

absl::Status FillTruncatedNormal(const RandomKey& key, double mean,
                                 double stddev, double low, double high,
                                 DistributedTensor& tensor) {
  TESSERA_RETURN_IF_ERROR(CheckTensor(tensor));
  TESSERA_RETURN_IF_ERROR(CheckNormal(mean, stddev));
  const double mass =
      NormalCdf((high - mean) / stddev) - NormalCdf((low - mean) / stddev);
  if (!(mass >= kLeastMass)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "normal numbers of mean ", mean, " and standard deviation ", stddev,
        " in [", low, ", ", high, "], where ", mass, " of all lie; it must be ",
        kLeastMass, " or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t count, ElementCount(tensor.shape()));
  if (count >= kMostElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("truncated normal numbers for ", count,
                     " elements; fewer than 2^56 can be drawn"));
  }
  const Philox random(key);
  return FillWith(tensor, [&](uint64_t first, std::span<double> values) {
    random.FillNormal(first, values);
    for (size_t i = 0; i < values.size(); ++i) {
      double value = mean + stddev * values[i];
      for (uint64_t draw = 1;
           draw <= kMostDraws && !(low <= value && value <= high); ++draw) {
        value = mean + stddev * random.Normal(first + i + draw * kMostElements);
      }
      values[i] = std::clamp(value, low, high);
    }
  });
}

}  // namespace tessera::tensor_parallel
