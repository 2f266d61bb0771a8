#include "zero3/estimate/memory_use.h"

#include "absl/strings/str_format.h"

namespace tessera::zero3 {
namespace {

using Tiers = topology::EnumNames<Tier>;
using Purposes = topology::EnumNames<Purpose>;

std::string Line(std::string_view name, int64_t device, int64_t host,
                 int64_t file) {
  return absl::StrFormat("%-16s %15d %15d %15d %15d\n", name, device, host,
                         file, device + host + file);
}

}  // namespace

int64_t MemoryUse::Of(Purpose purpose) const {
  int64_t sum = 0;
  for (const auto& tier : Tiers::kTable) sum += At(purpose, tier.value);
  return sum;
}

int64_t MemoryUse::Of(Tier tier) const {
  int64_t sum = 0;
  for (const auto& purpose : Purposes::kTable) sum += At(purpose.value, tier);
  return sum;
}

int64_t MemoryUse::ModelState() const {
  int64_t sum = 0;
  for (const auto& purpose : Purposes::kTable) {
    if (IsModelState(purpose.value)) sum += Of(purpose.value);
  }
  return sum;
}

int64_t MemoryUse::Buffers() const {
  int64_t sum = 0;
  for (const auto& purpose : Purposes::kTable) {
    if (!IsModelState(purpose.value)) sum += Of(purpose.value);
  }
  return sum;
}

std::string MemoryUse::ToString() const {
  std::string table = absl::StrFormat("%-16s %15s %15s %15s %15s\n", "bytes",
                                      "device", "host", "file", "total");
  for (const auto& purpose : Purposes::kTable) {
    if (Of(purpose.value) == 0) continue;
    table +=
        Line(purpose.name, At(purpose.value, Tier::kDevice),
             At(purpose.value, Tier::kHost), At(purpose.value, Tier::kFile));
  }
  return table +
         Line("total", Of(Tier::kDevice), Of(Tier::kHost), Of(Tier::kFile));
}

}  // namespace tessera::zero3
