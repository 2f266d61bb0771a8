#include "tools/offload_bench/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numbers>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"

namespace tessera::offload_bench {

namespace {

constexpr size_t kAlignment = 4096;
constexpr int64_t kChunk = 4096;  // Elements, an even number.

// In (0, 1].
double Uniform(std::mt19937_64& random) {
  return static_cast<double>((random() >> 11) + 1) * 0x1p-53;
}

// By G. Box and M. Muller, 1958: std::normal_distribution may differ from
// library to library.
void FillNormal(std::mt19937_64& random, std::vector<double>& values) {
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    const double radius =
        kDeviation * std::sqrt(-2 * std::log(Uniform(random)));
    const double angle = 2 * std::numbers::pi * Uniform(random);
    values[i] = radius * std::cos(angle);
    values[i + 1] = radius * std::sin(angle);
  }
}

}  // namespace

absl::StatusOr<Buffer> NormalWeights(DType dtype, int64_t count,
                                     uint64_t seed) {
  const int64_t size = SizeInBytes(dtype);
  TESSERA_ASSIGN_OR_RETURN(
      Buffer weights,
      Buffer::Allocate(HostMemory(), static_cast<size_t>(count * size),
                       kAlignment));
  std::mt19937_64 random(seed);
  std::vector<double> values(kChunk);
  for (int64_t at = 0; at < count; at += kChunk) {
    FillNormal(random, values);
    const int64_t n = std::min(kChunk, count - at);
    TESSERA_RETURN_IF_ERROR(Convert(
        DType::kF64,
        std::as_bytes(std::span(values).first(static_cast<size_t>(n))), dtype,
        weights.bytes().subspan(static_cast<size_t>(at * size),
                                static_cast<size_t>(n * size))));
  }
  return weights;
}

absl::StatusOr<Buffer> RandomBytes(int64_t count, uint64_t seed) {
  TESSERA_ASSIGN_OR_RETURN(
      Buffer bytes,
      Buffer::Allocate(HostMemory(), static_cast<size_t>(count), kAlignment));
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + at, &value,
                std::min(sizeof(value), bytes.size() - at));
  }
  return bytes;
}

namespace {

using offload::MemoryTier;
using offload::Operation;

// The first error; all are over then.
absl::Status WaitForAll(const std::vector<Operation>& operations) {
  absl::Status first;
  for (const Operation& operation : operations) first.Update(operation.Wait());
  return first;
}

}  // namespace

absl::StatusOr<Blocks> Blocks::Cut(Buffer values, DType dtype,
                                   int64_t block_bytes) {
  TESSERA_ASSIGN_OR_RETURN(Buffer room,
                           Buffer::Allocate(HostMemory(), values.size(), 4096));
  std::memset(room.data(), 0, room.size());
  const int64_t count = static_cast<int64_t>(values.size()) / block_bytes;
  return Blocks(std::move(values), std::move(room), dtype, block_bytes, count);
}

absl::Status Blocks::PutAll(MemoryTier& tier) const {
  std::vector<Operation> puts;
  for (int64_t i = 0; i < count_; ++i) {
    puts.push_back(
        tier.StartPut(absl::StrCat(i), values(i), {.dtype = dtype_}));
  }
  return WaitForAll(puts);
}

absl::Status Blocks::GetAll(MemoryTier& tier) {
  std::vector<Operation> gets;
  for (int64_t i = 0; i < count_; ++i) {
    gets.push_back(tier.StartGet(absl::StrCat(i), room(i)));
  }
  return WaitForAll(gets);
}

absl::Status Blocks::CopyAll() {
  for (int64_t i = 0; i < count_; ++i) {
    std::memcpy(room(i).data(), values(i).data(), At(1));
    asm volatile("" : : "r"(room_.data()) : "memory");  // It is looked at.
  }
  return absl::OkStatus();
}

absl::Status Blocks::CheckRoom(const MemoryTier& tier) const {
  for (int64_t i = 0; i < count_; ++i) {
    const auto got = room_.bytes().subspan(At(i), At(1));
    if (std::memcmp(got.data(), values(i).data(), got.size()) == 0) continue;
    return absl::DataLossError(
        absl::StrCat("tier ", tier.name(), " gave other bytes for block \"", i,
                     "\" of ", block_bytes_, " bytes than were put"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
