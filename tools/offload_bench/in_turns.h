// What is measured and its limit, in turns, so that whatever else the machine
// does hits both alike.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Comparison times,
//       CompareInTurns(Timed([&] { return tier.Put(key, bytes, info); }),
//                      Timed([&] { return Copy(bytes); }), /*seconds=*/0.5));
//   times.share   // 0.4: takes 2.5 times as long as the limit
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_IN_TURNS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_IN_TURNS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/optimizer/triad.h"
#include "tools/offload_bench/stopwatch.h"

namespace tessera::offload_bench {

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

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_IN_TURNS_H_
