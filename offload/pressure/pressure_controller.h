// PressureController: blocks moved from a near tier to a far one when memory
// becomes short.
//
//   PressureController controller(
//       {.near = &host, .far = &file,
//        .source = std::make_shared<SystemMemory>(),
//        .strategy = PressureStrategy::kBalanced,
//        .next_use = [&](std::string_view key) { return schedule.Next(key);
//        }});
//   ...
//   TESSERA_ASSIGN_OR_RETURN(PressureReport report, controller.Check());
//
// Check reads the pressure, and where the strategy acts moves what is needed
// last first, until the policy's bytes are moved. Each block is put into the
// far tier before it is dropped from the near one: at no moment, and after no
// error, is it in neither. Then what was freed is returned to the system.
//
// It begins to act when the level of the strategy is reached and goes on while
// the pressure is at or above the threshold less the margin; what one Check
// moves brings it below that, if so much can be moved. The level itself stays a
// while longer (pressure_gauge.h), and tells a caller not to grow.
#ifndef TESSERA_OFFLOAD_PRESSURE_PRESSURE_CONTROLLER_H_
#define TESSERA_OFFLOAD_PRESSURE_PRESSURE_CONTROLLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/pressure/pressure_gauge.h"
#include "offload/pressure/pressure_policy.h"
#include "offload/pressure/reading/memory_reading.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

// Returned by `next_use` for a block that has to stay.
inline constexpr int64_t kStays = -1;

struct PressureOptions {
  MemoryTier* near = nullptr;  // both outlive the controller
  MemoryTier* far = nullptr;
  std::shared_ptr<MemorySource> source;
  PressureStrategy strategy = PressureStrategy::kAggressive;
  GaugeOptions gauge = {};
  // How far away the block's next use is, in any unit from 0 on; kStays for
  // one that must not move, because it is in use or is being written: no one
  // else may Put or Drop a block while it moves. Without a function all may
  // move, the largest first.
  std::function<int64_t(std::string_view key)> next_use = {};
};

struct PressureReport {
  double pressure = 0;  // with stalls
  PressureLevel level = PressureLevel::kNone;
  bool acted = false;
  int64_t bytes_wanted = 0;
  int64_t bytes_moved = 0;
  std::vector<std::string> moved;  // keys, in order
  // The first block that could not be moved, and is where it was.
  absl::Status status;
  MemoryReading before;
  // As `before` where nothing was tried; with a note in `unread` where memory
  // could not be read again.
  MemoryReading after;
};

// Safe for concurrent use; Checks take turns. Runs on the caller's thread, and
// waits for the far tier.
class PressureController {
 public:
  // InvalidArgument where a tier or the source is missing, near and far are
  // one, or the margin or hold is negative.
  static absl::StatusOr<std::unique_ptr<PressureController>> Create(
      PressureOptions options);

  // An error only where the pressure cannot be read, and nothing has moved.
  absl::StatusOr<PressureReport> Check();

  // Moves up to `bytes` now, whatever the pressure.
  absl::StatusOr<PressureReport> Offload(int64_t bytes);

 private:
  struct Candidate {
    std::string key;
    int64_t bytes = 0;
    int64_t next_use = 0;
  };

  explicit PressureController(PressureOptions options);
  std::vector<Candidate> Candidates() const;
  void MoveUpTo(int64_t bytes, const std::vector<Candidate>& candidates,
                PressureReport& report) const;
  void ReadAfter(PressureReport& report) const;
  absl::Status MoveOne(const std::string& key) const;

  const PressureOptions options_;
  const PressurePolicy policy_;
  absl::Mutex mutex_;
  PressureGauge gauge_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_PRESSURE_CONTROLLER_H_
