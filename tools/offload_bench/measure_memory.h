// The measurements of codecs, memory tiers and CPU optimizers, whose limits are
// memcpy and a triad.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_MEMORY_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_MEMORY_H_

#include "absl/status/status.h"
#include "tools/offload_bench/bench_options.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {

// Encode and decode of bf16 and f32 weights by each codec, in this thread. GB/s
// are of the values; the limit is a memcpy that reads and writes as many bytes
// as the codec. Internal if a lossless codec changed a bit.
absl::Status MeasureCodecs(const OffloadBenchOptions& options,
                           const Sink& sink);

// Put, of blocks that exist, and Get of all blocks one after another: host,
// pinned, lossless_fast over host (bf16) and int8 over host (f32). The limit
// copies the same blocks, or for encodings reads and writes as many bytes as
// the codec. DataLoss if a lossless tier returned other bytes.
absl::Status MeasureTiers(const OffloadBenchOptions& options, const Sink& sink);

// AdamW, and SGD with momentum, of f32 parameters and gradients: moments in
// f32, bf16 and 8 bits, without a copy and with one in bf16. GB/s are of all
// bytes that a step must move (parameter, moments, gradient read; parameter,
// moments, copy written); the limit is the better of the triad's two kinds of
// stores, by as many threads over as much memory.
absl::Status MeasureOptimizers(const OffloadBenchOptions& options,
                               const Sink& sink);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_MEASURE_MEMORY_H_
