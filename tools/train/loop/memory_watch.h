// MemoryWatch: the memory that a rank's process takes in each step. Returns
// freed memory to the system when a step comes near the rank's share of
// --memory_limit.
//
//   MemoryWatch watch(300 << 20);
//   const MemoryWatch::Usage usage = watch.AfterStep();
//   if (usage.notice) Print("rank 0 " + *usage.notice);
//
// A step is judged by its peak if the system can restart the peak (man
// proc_pid_clear_refs), since a limit of the system applies to the peak;
// otherwise by the resident memory after it. From 90 % of the share on, freed
// memory that the process still holds is returned to the system. The first time
// there is a notice, and another one only after the pressure has fallen in
// between (offload/pressure/pressure_gauge.h).
#ifndef TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_
#define TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "offload/pressure/pressure_gauge.h"

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

// Makes the C library return freed blocks of 1 MiB or more to the system at
// once. By default its threshold grows with the blocks that are freed, up to
// 32 MiB, and the heap then keeps tens of MiB of freed tensors.
void ReturnFreedBlocks();

// Restarts the peak from the current value. False if the system does not allow
// that (man proc_pid_clear_refs).
bool RestartPeakMemory();

class MemoryWatch {
 public:
  // The system calls that it makes. Tests replace them.
  struct System {
    std::function<ResidentMemory()> read;
    std::function<bool()> restart_peak;  // False: the peak continues.
    std::function<void()> return_free_memory;
    std::function<int64_t()> now_ns;
  };
  static System RealSystem();

  struct Usage {
    // Bytes of the step, minus what was returned to the system after it.
    int64_t used = 0;
    // Set when memory is returned for the first time: "had 95.0MiB of its
    // 100.0MiB of --memory_limit; ...".
    std::optional<std::string> notice = std::nullopt;
  };

  explicit MemoryWatch(int64_t share, System system = RealSystem())
      : share_(share), system_(std::move(system)) {}

  // Begins a step: earlier peaks do not count.
  void Restart();

  // The usage since the last Restart or AfterStep. Restarts.
  Usage AfterStep();

  // The peak over all steps.
  int64_t peak() const { return peak_; }

 private:
  const int64_t share_;
  const System system_;
  offload::PressureGauge gauge_;
  bool restarts_peak_ = false;
  bool has_told_ = false;
  int64_t peak_ = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_
