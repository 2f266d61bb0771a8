// Stopwatch: seconds by the clock on the wall, or of the processor.
//
//   const Stopwatch watch(TimeKind::kProcessor, /*threads=*/2);
//   Work();
//   double seconds = watch.Seconds();
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_STOPWATCH_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_STOPWATCH_H_

#include <time.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::offload_bench {

enum class TimeKind {
  kWall,
  // Of the whole process, over the number of threads that share the work. What
  // the process waits, and what other processes take from it, does not count:
  // for machines that others use too, and work that never waits.
  kProcessor,
};

constexpr std::string_view TimeKindName(TimeKind kind) {
  return kind == TimeKind::kWall ? "wall" : "processor";
}

// Starts when it is made.
class Stopwatch {
 public:
  explicit Stopwatch(TimeKind kind, int64_t threads = 1)
      : clock_(kind == TimeKind::kWall ? CLOCK_MONOTONIC
                                       : CLOCK_PROCESS_CPUTIME_ID),
        threads_(kind == TimeKind::kWall ? 1 : static_cast<double>(threads)),
        start_(Now()) {}

  double Seconds() const { return (Now() - start_) / threads_; }

 private:
  double Now() const {
    timespec now = {};
    clock_gettime(clock_, &now);
    return static_cast<double>(now.tv_sec) +
           1e-9 * static_cast<double>(now.tv_nsec);
  }

  const clockid_t clock_;
  const double threads_;
  const double start_;
};

// Abseil flags.
inline bool AbslParseFlag(std::string_view text, TimeKind* kind,
                          std::string* error) {
  for (const TimeKind known : {TimeKind::kWall, TimeKind::kProcessor}) {
    if (text != TimeKindName(known)) continue;
    *kind = known;
    return true;
  }
  *error = "expected wall or processor";
  return false;
}
inline std::string AbslUnparseFlag(TimeKind kind) {
  return std::string(TimeKindName(kind));
}

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_STOPWATCH_H_
