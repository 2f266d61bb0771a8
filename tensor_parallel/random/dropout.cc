#include "tensor_parallel/random/dropout.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {
namespace {

// FNV-1a of 64 bits (Fowler, Noll, Vo): the same on every machine.
uint64_t HashOf(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

absl::Status CheckView(const ConstTensorView& view, const Shard& shard,
                       DType dtype, std::string_view side) {
  if (view.shape() == shard.shape() && view.dtype() == dtype &&
      view.IsContiguous() && IsFloating(dtype) &&
      IsHostAccessible(view.kind())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "dropout: the ", side, " is ", DTypeName(view.dtype()), " ",
      DimsToString(view.shape()), view.IsContiguous() ? "" : ", strided",
      " in ", MemoryKindName(view.kind()),
      " memory; a contiguous floating-point shard of ",
      DimsToString(shard.shape()), " in host memory is needed, of one type on ",
      "both sides"));
}

template <typename T>
void ApplyTo(const Philox& random, double probability, uint64_t first,
             std::span<const T> input, std::span<T> output) {
  const double scale = 1 / (1 - probability);
  std::array<double, 1024> uniform;
  for (size_t done = 0; done < input.size(); done += uniform.size()) {
    const size_t count = std::min(uniform.size(), input.size() - done);
    random.FillUniform(first + done, std::span(uniform.data(), count));
    for (size_t i = 0; i < count; ++i) {
      output[done + i] =
          ConvertValue<T>(uniform[i] < probability
                              ? 0.0
                              : scale * ConvertValue<double>(input[done + i]));
    }
  }
}

}  // namespace

absl::StatusOr<Dropout> Dropout::Create(
    const RandomKey& key, double probability,
    std::vector<std::string> differs_along) {
  if (!(probability >= 0 && probability < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dropout with probability ", probability, "; it must be in [0, 1)"));
  }
  std::sort(differs_along.begin(), differs_along.end());
  const auto twice =
      std::adjacent_find(differs_along.begin(), differs_along.end());
  if (twice != differs_along.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("dropout differs along axis \"", twice->substr(0, 64),
                     "\" twice; name each axis once"));
  }
  return Dropout(key, probability, std::move(differs_along));
}

absl::StatusOr<RandomKey> Dropout::KeyOf(const topology::Mesh& mesh,
                                         topology::Rank rank) const {
  RandomKey key = key_;
  for (const std::string& axis : differs_along_) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t coordinate,
                             mesh.CoordinateOf(rank, axis),
                             Annotate(_, "dropout"));
    key.stream = Philox({.seed = key.stream, .stream = HashOf(axis)})
                     .Bits(static_cast<uint64_t>(coordinate));
  }
  return key;
}

absl::Status Dropout::Apply(const topology::Mesh& mesh, topology::Rank rank,
                            const ShardSpec& spec,
                            std::span<const int64_t> shape,
                            const ConstTensorView& input,
                            const TensorView& output) const {
  TESSERA_ASSIGN_OR_RETURN(const Shard shard, ShardOf(mesh, spec, shape, rank));
  for (const std::string& axis : spec.AxesInUse()) {
    if (!std::binary_search(differs_along_.begin(), differs_along_.end(),
                            axis)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "dropout differs along \"", axis, "\", which ", spec.ToString(),
        " uses: shards have masks of their own, and addends must have the "
        "same; name axes along which ranks hold the same"));
  }
  TESSERA_RETURN_IF_ERROR(CheckView(input, shard, input.dtype(), "input"));
  TESSERA_RETURN_IF_ERROR(CheckView(output, shard, input.dtype(), "output"));
  TESSERA_ASSIGN_OR_RETURN(const RandomKey key, KeyOf(mesh, rank));
  const Philox random(key);
  return DispatchDType(
      input.dtype(), [&]<typename T>(std::type_identity<T>) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const std::span<const T> from,
                                 input.AsSpan<T>());
        TESSERA_ASSIGN_OR_RETURN(const std::span<T> to, output.AsSpan<T>());
        ForEachRun(shard, shape, [&](const ShardRun& run) {
          const auto begin = static_cast<size_t>(run.local);
          const auto length = static_cast<size_t>(run.length);
          ApplyTo<T>(random, probability_, static_cast<uint64_t>(run.whole),
                     from.subspan(begin, length), to.subspan(begin, length));
        });
        return absl::OkStatus();
      });
}

absl::Status Dropout::Apply(const DistributedTensor& input,
                            DistributedTensor& output) const {
  if (input.rank() != output.rank() || !(input.spec() == output.spec()) ||
      input.shape() != output.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("dropout from ", input.ToString(), " to ",
                     output.ToString(), "; they must be equal"));
  }
  return Apply(input.mesh(), input.rank(), input.spec(), input.shape(),
               input.local().view(), output.local().view());
}

}  // namespace tessera::tensor_parallel
