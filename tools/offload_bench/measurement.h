// Measurement: one line of the benchmark's result; CompareInTurns: measures a
// subject and its limit in turns, so that disturbances of the machine affect
// both alike.
//
// clang-format off
//   TESSERA_ASSIGN_OR_RETURN(
//       Comparison times,
//       CompareInTurns(Timed([&] { return tier.Put(key, bytes, info); }),
//                      Timed([&] { return Copy(bytes); }), /*seconds=*/0.5));
//   times.share;  // 0.4: takes 2.5 times as long as the limit.
// clang-format on
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
#include "tools/cli/records.h"

namespace tessera::offload_bench {

enum class TimeKind {
  kWall,
  // CPU time of the whole process divided by the threads that share the work.
  // Excludes waiting and other processes: for shared machines and work that
  // never waits.
  kProcessor,
};

constexpr std::string_view TimeKindName(TimeKind kind) {
  return kind == TimeKind::kWall ? "wall" : "processor";
}

// Seconds since its construction, on the wall clock or of CPU time.
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

// Executes the work once and returns its seconds.
using Pass = std::function<absl::StatusOr<double>()>;

// Seconds of one pass: the median, and the interquartile range over the median.
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

// The minimum number of turns, however long they take.
inline constexpr int64_t kLeastTurns = 5;

// Passes of both in alternating order, for about `seconds` in total. The first
// turn warms up caches and does not count. Returns the first error of either.
absl::StatusOr<Comparison> CompareInTurns(const Pass& subject,
                                          const Pass& limit, double seconds);

// The same from measured times, as many of each, at least one.
Comparison Compare(std::vector<double> subject, std::vector<double> limit);

// Repeats `work`, by `threads` threads, for at least a millisecond a pass.
// Seconds are of one call.
Pass Timed(std::function<absl::Status()> work, TimeKind kind = TimeKind::kWall,
           int64_t threads = 1);

// memcpy in this thread that reads and writes `bytes` bytes in total, half and
// half. ResourceExhausted without enough memory.
absl::StatusOr<Pass> MemcpyPass(int64_t bytes, TimeKind kind);

// A triad over `bytes`, with ordinary or streaming stores, whichever is faster.
Pass TriadPass(std::shared_ptr<offload::Triad> triad, double bytes,
               TimeKind kind);

struct Measurement {
  std::string what;       // "codecs": the part of the benchmark
  std::string name;       // "lossless", "adamw", "pinned"
  std::string operation;  // "encode", "step", "get"
  std::string data;       // "bf16", "f32 moments and bf16 copy"
  int64_t threads = 1;    // Computing threads.
  int64_t block_bytes = 0;
  int64_t bytes = 0;  // Bytes of a pass.
  Comparison times;
  TimeKind time = TimeKind::kWall;
  std::string limit;  // "memcpy", "triad", "device", "bound"
  // Bytes of the values over stored bytes.
  std::optional<double> ratio = std::nullopt;
  // Root mean square of the change of values over that of the values.
  std::optional<double> error = std::nullopt;
  // Bytes that an optimizer step must move.
  std::optional<double> bytes_per_parameter = std::nullopt;
  std::string note = {};  // Remarks for the reader of the numbers.

  // GB/s (10^9) of `bytes`, and what it would be at the limit.
  double Rate() const {
    return static_cast<double>(bytes) / times.subject.seconds * 1e-9;
  }
  double LimitRate() const {
    return static_cast<double>(bytes) / times.limit.seconds * 1e-9;
  }
};

using Sink = std::function<void(const Measurement&)>;

// Adds the times of CompareInTurns to the measurement and passes it on.
absl::Status Report(Measurement measurement, const Pass& subject,
                    const Pass& limit, double seconds, const Sink& sink);

// Prints measurements: columns what,name,operation,data,threads,block_bytes,
// bytes,turns,clock,time_us,GBps,spread,limit,limit_GBps,limit_spread,share,
// ratio,error,bytes_per_parameter,note, which are stable.
class MeasurementPrinter {
 public:
  MeasurementPrinter(tools::OutputFormat format, std::ostream& out)
      : printer_(format, "measurements", out) {}

  void Print(const Measurement& measurement);
  void Finish() { printer_.Finish(); }

 private:
  tools::RecordPrinter printer_;
  std::string heading_;  // The part that is being printed, as text.
};

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_
