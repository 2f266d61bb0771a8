// Sources of readings beside the system's: budgets, devices, several in one.
//
//   CombinedSource source({std::make_shared<SystemMemory>(),
//                          std::make_shared<BudgetSource>(accounting)});
#ifndef TESSERA_OFFLOAD_PRESSURE_READING_BUDGET_SOURCE_H_
#define TESSERA_OFFLOAD_PRESSURE_READING_BUDGET_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/pressure/reading/memory_reading.h"
#include "offload/tier/accounting.h"

namespace tessera::offload {

// An Accounting's budget as a limit; none where it is kUnlimited.
class BudgetSource final : public MemorySource {
 public:
  explicit BudgetSource(std::shared_ptr<Accounting> accounting);
  absl::StatusOr<MemoryReading> Read() override;

 private:
  const std::shared_ptr<Accounting> accounting_;
};

// Memory that someone else knows about, as that of a GPU (of CUDA:
// offload/cuda/cuda_source.h):
//
//   DeviceSource card("card 0", []() -> absl::StatusOr<DeviceMemory> {
//     return DeviceMemory{card.FreeBytes(), card.TotalBytes()};
//   });
struct DeviceMemory {
  int64_t free = 0;  // bytes
  int64_t total = 0;
};
class DeviceSource final : public MemorySource {
 public:
  using Query = std::function<absl::StatusOr<DeviceMemory>()>;
  // `query` is safe for concurrent use.
  DeviceSource(std::string name, Query query);
  // The query's errors are handed on, behind the name; Internal where it says
  // what cannot be.
  absl::StatusOr<MemoryReading> Read() override;

 private:
  const std::string name_;
  const Query query_;
};

// All limits of several sources, the worst stalls and the most of everything
// else. A source that fails is told in `unread`; an error only where all fail.
class CombinedSource final : public MemorySource {
 public:
  explicit CombinedSource(std::vector<std::shared_ptr<MemorySource>> sources);
  absl::StatusOr<MemoryReading> Read() override;

 private:
  const std::vector<std::shared_ptr<MemorySource>> sources_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_READING_BUDGET_SOURCE_H_
