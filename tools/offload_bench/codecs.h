// Codecs against memcpy.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_CODECS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_CODECS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/offload_bench/measurement.h"
#include "tools/offload_bench/stopwatch.h"

namespace tessera::offload_bench {

struct CodecsOptions {
  std::vector<std::string> codecs;  // Names that CreateCodec takes.
  int64_t size = 0;                 // Bytes of values, a multiple of 4.
  double seconds = 0;               // Of each measurement.
  TimeKind time = TimeKind::kWall;
};

// Encode and decode of bf16 and f32 weights by each codec, in this thread. GB/s
// are of the values; the limit is a memcpy that reads and writes as many bytes
// as the codec does. Internal where a lossless codec changed a bit.
absl::Status MeasureCodecs(const CodecsOptions& options, const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_CODECS_H_
