// MemoryWatch: keeps a rank's process below its share of --memory_limit between
// steps.
//
//   MemoryWatch watch(300 << 20);
//   if (const auto notice = watch.AfterStep()) Say(*notice);
//
// Where resident memory is at 90 % of the limit or more, what the process has
// freed but still holds goes back to the system. A notice says so the first
// time, and again only after the pressure has fallen in between
// (offload/pressure/pressure_gauge.h).
#ifndef TESSERA_TOOLS_TRAIN_WORKER_MEMORY_MEMORY_WATCH_H_
#define TESSERA_TOOLS_TRAIN_WORKER_MEMORY_MEMORY_WATCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "offload/pressure/pressure_gauge.h"

namespace tessera::train {

class MemoryWatch {
 public:
  // What it reads and calls; tests give their own.
  struct System {
    std::function<int64_t()> resident;  // Bytes of this process.
    std::function<void()> return_free_memory;
    std::function<int64_t()> now_ns;
  };

  explicit MemoryWatch(int64_t limit) : MemoryWatch(limit, RealSystem()) {}
  MemoryWatch(int64_t limit, System system)
      : limit_(limit), system_(std::move(system)) {}

  // One line, where memory was returned and nothing was said yet.
  std::optional<std::string> AfterStep();

 private:
  static System RealSystem();

  const int64_t limit_;
  const System system_;
  offload::PressureGauge gauge_;
  bool has_told_ = false;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WORKER_MEMORY_MEMORY_WATCH_H_
