#include "tools/offload_bench/blocks.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload_bench {
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
