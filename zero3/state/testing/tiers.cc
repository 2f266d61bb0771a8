#include "zero3/state/testing/tiers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "offload/tier/host_tier.h"

namespace tessera::zero3::testing {

namespace {

absl::StatusOr<std::vector<double>> AsDoubles(
    DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() /
                             static_cast<size_t>(SizeInBytes(dtype)));
  TESSERA_RETURN_IF_ERROR(Convert(dtype, bytes, DType::kF64,
                                  std::as_writable_bytes(std::span(values))));
  return values;
}

// The largest magnitude in the block of `block` elements around element `i`.
double LargestAround(const std::vector<double>& values, size_t i,
                     int64_t block) {
  if (block == 0) return 0;
  const auto size = static_cast<size_t>(block);
  const size_t begin = i / size * size;
  double largest = 0;
  for (size_t j = begin; j < std::min(begin + size, values.size()); ++j) {
    largest = std::max(largest, std::abs(values[j]));
  }
  return largest;
}

}  // namespace

BoundTier::BoundTier(std::shared_ptr<const offload::Codec> codec)
    : codec_(codec),
      tier_(codec, std::make_shared<offload::HostTier>(
                       std::make_shared<offload::Accounting>(
                           "host", offload::kUnlimited))) {}

offload::Operation BoundTier::StartPut(std::string_view key,
                                       std::span<const std::byte> bytes,
                                       offload::BlockInfo info) {
  // Writes of one block are serialised, so reads get the last one.
  absl::Status put = tier_.Put(key, bytes, info);
  absl::MutexLock lock(&mutex_);
  if (put.ok()) {
    originals_[std::string(key)] = {{bytes.begin(), bytes.end()}, info.dtype};
  }
  return offload::Operation(std::move(put));
}

offload::Operation BoundTier::StartRead(std::string_view key,
                                        std::optional<int64_t> offset,
                                        std::span<std::byte> out) {
  if (offset) {
    return offload::Operation(
        absl::UnimplementedError("parts of blocks are not compared"));
  }
  absl::Status status = tier_.Get(key, out);
  if (status.ok()) status = Check(key, out);
  return offload::Operation(std::move(status));
}

absl::Status BoundTier::Check(std::string_view key,
                              std::span<const std::byte> decoded) {
  absl::MutexLock lock(&mutex_);
  const Original& original = originals_.find(key)->second;
  TESSERA_ASSIGN_OR_RETURN(const offload::ErrorBound bound,
                           codec_->MaxError(original.dtype));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> before,
                           AsDoubles(original.dtype, original.bytes));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> after,
                           AsDoubles(original.dtype, decoded));
  for (size_t i = 0; i < before.size(); ++i) {
    ++elements_;
    if (before[i] != after[i]) ++changed_;
    const double allowed =
        bound.Of(before[i], LargestAround(before, i, bound.block),
                 LargestAround(before, i, bound.group));
    if (std::abs(after[i] - before[i]) <= allowed) continue;
    return absl::OutOfRangeError(absl::StrCat(key, " element ", i, " was ",
                                              before[i], " and is ", after[i],
                                              ", by more than ", allowed));
  }
  return absl::OkStatus();
}

int64_t BoundTier::elements() const {
  absl::MutexLock lock(&mutex_);
  return elements_;
}

int64_t BoundTier::changed() const {
  absl::MutexLock lock(&mutex_);
  return changed_;
}

}  // namespace tessera::zero3::testing
