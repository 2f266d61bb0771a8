// Row: one measured result of the benchmark.
#ifndef TESSERA_TOOLS_COMM_BENCH_ROW_H_
#define TESSERA_TOOLS_COMM_BENCH_ROW_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype/dtype.h"
#include "collectives/operation/operation.h"

namespace tessera::tools {

// Of an engine's operation while a computation runs beside it.
struct Overlap {
  double compute_seconds = 0;
  double operation_seconds = 0;
  double both_seconds = 0;

  // How much of the shorter one disappears behind the longer: 1 all of it, 0
  // none; below 0 where they hinder each other.
  double Hidden() const;
};

// What the adaptive chooser would have taken instead of this row's algorithm.
struct Choice {
  std::string algorithm;
  double regret = 1;  // Time of the chosen one over that of the fastest.
};

struct Row {
  std::string engine;
  std::string algorithm;  // "engine": its own; "+reproducible" behind it.
  collectives::OpKind op = collectives::OpKind::kAllReduce;
  DType dtype = DType::kF32;
  int64_t world = 1;
  int64_t bytes = 0;  // Of the whole message.
  int64_t iterations = 0;
  double seconds = 0;  // Median over iterations of the slowest rank.
  double ratio = 1;    // seconds over those of the first row of this case.
  std::optional<double> bound_seconds = std::nullopt;
  std::optional<Overlap> overlap = std::nullopt;
  std::optional<Choice> choice = std::nullopt;  // Of the engine, in this case.

  // GB/s (10^9), as nccl-tests define them; 0 for a barrier.
  double AlgorithmBandwidth() const;
  double BusBandwidth() const;
  // The bound over the time: 1 would be as fast as memory allows.
  std::optional<double> Share() const;

  // Whether two rows differ in engine, algorithm and time only.
  bool SameCase(const Row& other) const {
    return op == other.op && dtype == other.dtype && world == other.world &&
           bytes == other.bytes;
  }
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_ROW_H_
