// TrafficMeter: measures how fast this machine moves the minimum bytes of a
// collective with as many processes: the bound for engines.
//
//   TESSERA_ASSIGN_OR_RETURN(auto meter, TrafficMeter::Start(4, 64 << 20));
//   TESSERA_ASSIGN_OR_RETURN(double seconds,
//                            meter->Measure(OpKind::kAllReduce, 1 << 20));
//
// The processes share their buffers. The work of rank i of n for a message of S
// bytes, with the same placement as an engine on registered buffers:
//
//   all_reduce                reads part i of n inputs, writes it to n outputs:
//                             2 S
//   reduce_scatter, reduce    reads part i of n inputs, writes it once:
//                             S + S/n
//   all_gather, all_to_all    reads a block of each input, writes each: 2 S
//   broadcast                 reads the root's input, writes its output: 2 S
//   gather, scatter           moves its block: 2 S/n
//
// The timed part has no synchronisation and measures each process's own CPU
// time: the bound is the longest of these or, with more processes than
// processors, their sum divided by the processors. As in the benchmark, buffers
// are rewritten before and short moves are repeated.
#ifndef TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_
#define TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/operation/operation.h"

namespace tessera::tools {

// Every rank's buffers, each with room for a whole message of f32.
struct TrafficBuffers {
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

// Moves the bytes of `rank` for a message of `bytes`, as in the table above.
// `streamed`: with non-temporal stores.
void MoveTraffic(const TrafficBuffers& buffers, int64_t rank,
                 collectives::OpKind kind, int64_t bytes, bool streamed);

class TrafficMeter {
 public:
  // Forks the processes; the calling process must have one thread.
  // ResourceExhausted if messages of `max_bytes` need more than half of the
  // free memory.
  static absl::StatusOr<std::unique_ptr<TrafficMeter>> Start(int64_t world,
                                                             int64_t max_bytes);
  ~TrafficMeter();

  // Seconds, the median over iterations, with ordinary or streaming stores,
  // whichever is faster. `bytes` is the whole message, at most max_bytes.
  // Unavailable if a process died.
  absl::StatusOr<double> Measure(collectives::OpKind kind, int64_t bytes);

 private:
  struct Child {
    pid_t pid = 0;
    UniqueFd socket;
  };

  TrafficMeter(int64_t world, int64_t max_bytes, double ranks_per_processor)
      : world_(world),
        max_bytes_(max_bytes),
        ranks_per_processor_(ranks_per_processor) {}

  absl::Status MapMemory();
  absl::Status ForkAll();
  absl::StatusOr<double> MeasureWith(collectives::OpKind kind, int64_t bytes,
                                     bool streamed);

  int64_t world_;
  int64_t max_bytes_;
  double ranks_per_processor_;
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::vector<Child> children_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TRAFFIC_METER_H_
