// MemoryWatch: how much memory a rank's process takes in each step, and freed
// memory given back to the system when that comes near its share of
// --memory_limit.
//
//   MemoryWatch watch(300 << 20);
//   const MemoryWatch::Usage usage = watch.AfterStep();
//   if (usage.notice) Say("rank 0 " + *usage.notice);
//
// A step is judged by its peak, which is what a limit of the system would have
// met, where the system can restart the peak (man proc_pid_clear_refs); else by
// what is resident after it. From 90 % of the share on, what the process has
// freed but still holds goes back to the system. A notice says so the first
// time, and again only after the pressure has fallen in between
// (offload/pressure/pressure_gauge.h).
#ifndef TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_
#define TESSERA_TOOLS_TRAIN_LOOP_MEMORY_WATCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "offload/pressure/pressure_gauge.h"
#include "tools/train/loop/process_memory.h"

namespace tessera::train {

class MemoryWatch {
 public:
  // What it reads and calls; tests give their own.
  struct System {
    std::function<ProcessMemory()> read;
    std::function<bool()> restart_peak;  // False: the peak goes on.
    std::function<void()> return_free_memory;
    std::function<int64_t()> now_ns;
  };
  static System RealSystem();

  struct Usage {
    // Bytes of the step, less what was given back to the system since.
    int64_t used = 0;
    // Where memory was given back and nothing was said yet, what is to be said
    // of the rank: "had 95.0MiB of its 100.0MiB of --memory_limit; ...".
    std::optional<std::string> notice = std::nullopt;
  };

  explicit MemoryWatch(int64_t share, System system = RealSystem())
      : share_(share), system_(std::move(system)) {}

  // The step begins, or what was before it shall not count.
  void Restart();

  // Of everything since Restart or the call before. Restarts.
  Usage AfterStep();

  // The most that was resident at any time in steps.
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
