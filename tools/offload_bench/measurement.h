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

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cli/cli.h"
#include "tools/cli/records.h"

namespace tessera::offload_bench {

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

// Repeats `work` for at least a millisecond a pass. Seconds are of one call.
Pass Timed(std::function<absl::Status()> work);

struct Measurement {
  std::string what;       // "file" or "device".
  std::string name;       // "file by io_uring", "cuda:0"
  std::string operation;  // "put", "both"
  int64_t block_bytes = 0;
  int64_t bytes = 0;  // Bytes of a pass.
  Comparison times = {};
  std::string limit;      // "device", "pcie"
  std::string note = {};  // Remarks for the reader of the numbers.

  // GB/s (10^9) of `bytes`, and what it would be at the limit.
  double Rate() const {
    return static_cast<double>(bytes) / times.subject.seconds * 1e-9;
  }
  double LimitRate() const {
    return static_cast<double>(bytes) / times.limit.seconds * 1e-9;
  }
};

// Prints measurements: columns what,name,operation,block_bytes,bytes,turns,
// time_us,GBps,spread,limit,limit_GBps,limit_spread,share,note, which are
// stable.
class MeasurementPrinter {
 public:
  MeasurementPrinter(tools::OutputFormat format, std::ostream& out)
      : printer_(format, "measurements", out) {}

  void Print(const Measurement& measurement);
  void Finish() { printer_.Finish(); }

 private:
  tools::RecordPrinter printer_;
};

using Sink = std::function<void(const Measurement&)>;

// Adds the times of CompareInTurns to the measurement and passes it on.
absl::Status Report(Measurement measurement, const Pass& subject,
                    const Pass& limit, double seconds, const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_
