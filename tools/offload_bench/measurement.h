// Stopwatch: seconds by the clock on the wall, or of the processor.
//
//   const Stopwatch watch(TimeKind::kProcessor, /*threads=*/2);
//   Work();
//   double seconds = watch.Seconds();
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_

#include <time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/optimizer/triad.h"
#include "tools/cli/cli.h"

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

// What is measured and its limit, in turns, so that whatever else the machine
// does hits both alike.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Comparison times,
//       CompareInTurns(Timed([&] { return tier.Put(key, bytes, info); }),
//                      Timed([&] { return Copy(bytes); }), /*seconds=*/0.5));
//   times.share   // 0.4: takes 2.5 times as long as the limit

// Works once and tells how many seconds it took.
using Pass = std::function<absl::StatusOr<double>()>;

// Seconds of one pass: the median, and how far the middle half of them spreads
// around it (upper less lower quartile, over the median).
struct PassTime {
  double seconds = 0;
  double spread = 0;
};

struct Comparison {
  PassTime subject;
  PassTime limit;
  // The median over turns of limit / subject: 1 is as fast as the limit. Each
  // turn is compared within itself.
  double share = 0;
  int64_t turns = 0;
};

// Fewer turns than this are never taken, however long they are.
inline constexpr int64_t kLeastTurns = 5;

// Passes of both, the one that goes first changing from turn to turn, for
// about `seconds` altogether. The first failure of either ends it. The first
// turn warms caches up and does not count.
absl::StatusOr<Comparison> CompareInTurns(const Pass& subject,
                                          const Pass& limit, double seconds);

// The same from times that were taken already: as many of each, at least one.
Comparison Compare(std::vector<double> subject, std::vector<double> limit);

// `work`, by `threads` threads, as often as it takes for a pass of a
// millisecond. Seconds are of one call.
Pass Timed(std::function<absl::Status()> work, TimeKind kind = TimeKind::kWall,
           int64_t threads = 1);

// memcpy that reads and writes `bytes` bytes altogether, half and half, in this
// thread. ResourceExhausted where there is no memory for it.
absl::StatusOr<Pass> MemcpyPass(int64_t bytes, TimeKind kind);

// The better of the triad's two kinds of stores, for `bytes` as it counts them.
Pass TriadPass(std::shared_ptr<offload::Triad> triad, double bytes,
               TimeKind kind);

// Measurement: one line of the benchmark's result.

struct Measurement {
  std::string what;       // "codecs": the part of the benchmark
  std::string name;       // "lossless", "adamw", "pinned"
  std::string operation;  // "encode", "step", "get"
  std::string data;       // "bf16", "f32 moments and bf16 copy"
  int64_t threads = 1;    // That compute.
  int64_t block_bytes = 0;
  int64_t bytes = 0;  // That a pass is counted as.
  Comparison times;
  TimeKind time = TimeKind::kWall;
  std::string limit;  // "memcpy", "triad", "device", "bound"
  // Bytes of the values over bytes held.
  std::optional<double> ratio = std::nullopt;
  // Root of the mean square of what values changed by, over that of the values.
  std::optional<double> error = std::nullopt;
  // That an optimizer's step must move.
  std::optional<double> bytes_per_parameter = std::nullopt;
  std::string note = {};  // What else whoever reads the numbers must know.

  // GB/s (10^9) of `bytes`, and what it would be at the limit.
  double Rate() const {
    return static_cast<double>(bytes) / times.subject.seconds * 1e-9;
  }
  double LimitRate() const {
    return static_cast<double>(bytes) / times.limit.seconds * 1e-9;
  }
};

using Sink = std::function<void(const Measurement&)>;

// Measurements as text, JSON or CSV.

// CSV's first line. The columns are stable; a value that does not apply is
// empty. JSON has the same names, and null.
inline constexpr std::string_view kColumns =
    "what,name,operation,data,threads,block_bytes,bytes,turns,clock,time_us,"
    "GBps,"
    "spread,limit,limit_GBps,limit_spread,share,ratio,error,"
    "bytes_per_parameter,note";

// Prints each as it comes; JSON is one document, {"measurements": [...]}.
class MeasurementPrinter {
 public:
  MeasurementPrinter(tools::OutputFormat format, std::ostream& out)
      : format_(format), out_(out) {}

  void Print(const Measurement& measurement);
  void Finish();

 private:
  void PrintText(const Measurement& measurement);

  const tools::OutputFormat format_;
  std::ostream& out_;
  std::string heading_;  // The part that is being printed, as text.
  bool begun_ = false;
};

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_
