// TrafficMeter: how fast this machine moves the bytes that a collective must
// move at least, with as many processes: the bound that engines are held to.
//
//   TESSERA_ASSIGN_OR_RETURN(auto meter, TrafficMeter::Start(4, 64 << 20));
//   TESSERA_ASSIGN_OR_RETURN(double seconds,
//                            meter->Measure(OpKind::kAllReduce, 1 << 20));
//
// The processes share their buffers. What rank i of n does for a message of S
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
// Nothing is synchronised within the timed part, and what counts is each
// process's own processor time: the bound is the longest of these or, where
// more processes than processors take turns, their sum over the processors.
// Buffers are rewritten before it and short moves repeated, as the benchmark
// does.
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

class TrafficMeter {
 public:
  // Forks the processes: this one must have one thread. ResourceExhausted where
  // messages of `max_bytes` would take more than half of the free memory.
  static absl::StatusOr<std::unique_ptr<TrafficMeter>> Start(int64_t world,
                                                             int64_t max_bytes);
  ~TrafficMeter();

  // The median over iterations of the time that all of them need, with ordinary
  // or streaming stores, whichever is faster. `bytes` is the whole message, at
  // most max_bytes. Unavailable where a process died.
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
