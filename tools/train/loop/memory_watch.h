// Measures the memory that a rank's process uses in each step, and returns
// freed memory to the system when a step comes near the rank's share of
// --memory_limit.
//
//   MemoryWatch watch(300 << 20);
//   const MemoryWatch::Usage usage = watch.AfterStep();
//   if (usage.notice) Print("rank 0 " + *usage.notice);
//
// The usage of a step is its peak, to which the system's limits apply, if the
// system can reset the peak (man proc_pid_clear_refs); otherwise the resident
// memory after it. From the threshold of the policy on, by default 90 % of the
// share, freed memory that the process still holds is returned to the system.
// This gives a notice the first time, and again only after the pressure has
// fallen in between (offload/pressure/pressure_gauge.h).
#ifndef TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_
#define TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "offload/pressure/pressure_gauge.h"
#include "offload/pressure/pressure_policy.h"
#include "offload/pressure/system_memory.h"

namespace tessera::train {

// The resident memory of this process. Bytes; 0 if the system does not report
// it.
struct ResidentMemory {
  int64_t resident = 0;       // VmRSS
  int64_t peak_resident = 0;  // VmHWM
};

ResidentMemory ReadResidentMemory();

// Parses the format of /proc/PID/status (man proc_pid_status).
ResidentMemory ParseProcessStatus(std::string_view text);

// Makes the C library return freed blocks of 1 MiB or more to the system
// immediately. By default its threshold grows with the freed blocks, up to
// 32 MiB, and the heap then keeps tens of MiB of freed tensors.
void ReturnFreedBlocks();

// Resets the peak to the current value. False if the system does not allow it
// (man proc_pid_clear_refs).
bool RestartPeakMemory();

class MemoryWatch {
 public:
  // The system calls that it makes. Tests replace them.
  struct System {
    std::function<ResidentMemory()> read;
    std::function<bool()> restart_peak;  // False: the peak was not reset.
    std::function<void()> return_free_memory;
    std::function<int64_t()> now_ns;
  };
  static System RealSystem();

  struct Usage {
    // The bytes of the step minus the bytes returned to the system after it.
    int64_t used = 0;
    // The bytes of the step, relative to the share.
    offload::MemoryReading reading = {};
    // Set when memory is returned for the first time: "had 95.0MiB of its
    // 100.0MiB of --memory_limit; ...".
    std::optional<std::string> notice = std::nullopt;
  };

  explicit MemoryWatch(int64_t share, System system = RealSystem(),
                       const offload::PressurePolicy& policy = {})
      : share_(share), policy_(policy), system_(std::move(system)) {}

  // Begins a step. Earlier peaks are ignored.
  void Restart();

  // Returns the usage since the last Restart or AfterStep, and restarts.
  Usage AfterStep();

  // The peak over all steps.
  int64_t peak() const { return peak_; }

 private:
  const int64_t share_;
  const offload::PressurePolicy policy_;
  const System system_;
  offload::PressureGauge gauge_;
  bool restarts_peak_ = false;
  bool has_told_ = false;
  int64_t peak_ = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_
