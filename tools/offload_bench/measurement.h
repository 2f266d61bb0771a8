// Measurement: one line of the benchmark's result.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/offload_bench/in_turns.h"
#include "tools/offload_bench/stopwatch.h"

namespace tessera::offload_bench {

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

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASUREMENT_H_
