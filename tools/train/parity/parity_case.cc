#include "tools/train/parity/parity_case.h"

#include "offload/optimizer/moment.h"

namespace tessera::train {

ParityCase PlainCase(const ParityCase& run) {
  return {.tied = run.tied,
          .clip = run.clip,
          .kv_heads = run.kv_heads,
          .moments = run.moments,
          .length = run.length,
          .layers = run.layers,
          .dtype = run.dtype,
          .steps = run.steps};
}

double RoundingFactor(const ParityCase& run) {
  return run.moments == "f32" ? 1 : 10;
}

RunOptions RunOptionsOf(const ParityCase& run) {
  RunOptions options;
  options.mesh = run.mesh;
  options.model = {.vocabulary = 257,
                   .hidden = 20,
                   .intermediate = 27,
                   .layers = run.layers,
                   .heads = 6,
                   .kv_heads = run.kv_heads,
                   .head_size = 4,
                   .tied_embeddings = run.tied,
                   .initializer_range = 0.1};
  options.dtype = run.dtype;
  options.batch = 8;
  options.micro_batch = run.micro_batch;
  options.length = run.length;
  options.steps = run.steps;
  options.learning_rate = {.peak = 0.01,
                           .least = 0.001,
                           .warmup_steps = 3,
                           .total_steps = run.steps};
  options.schedule = run.schedule;
  options.chunks = run.chunks;
  options.sequence_parallel = run.sequence_parallel;
  options.zigzag = run.zigzag;
  options.recompute = run.recompute;
  options.gather_ahead = run.gather_ahead;
  options.max_gathered_bytes = run.max_gathered_bytes;
  options.reduce = run.reduce == "each"   ? ReduceChoice::kEachMicroBatch
                   : run.reduce == "last" ? ReduceChoice::kLastMicroBatch
                                          : ReduceChoice::kAuto;
  options.state.stage = run.stage;
  options.state.layout = run.layout;
  options.state.bucket_bytes = run.bucket_bytes;
  options.state.persistence_threshold = run.persistence_threshold;
  options.state.moments = *offload::ParseMomentFormat(run.moments);
  options.state.hpz_partition_size = run.hpz_partition_size;
  options.state.quantized_weights = run.quantized_weights;
  options.state.quantized_gradients = run.quantized_gradients;
  options.state.clip_norm = run.clip ? 0.5 : 0;
  return options;
}

std::ostream& operator<<(std::ostream& os, const ParityCase& run) {
  return os << run.mesh.ToString() << " schedule=" << run.schedule << "/"
            << run.chunks << " micro_batch=" << run.micro_batch
            << " recompute=" << run.recompute
            << " sequence_parallel=" << run.sequence_parallel
            << " zigzag=" << run.zigzag << " zero=" << run.stage
            << " layout=" << run.layout << " bucket_bytes=" << run.bucket_bytes
            << " persistence_threshold=" << run.persistence_threshold
            << " gather_ahead=" << run.gather_ahead
            << " max_gathered_bytes=" << run.max_gathered_bytes
            << " reduce=" << run.reduce
            << " hpz_partition_size=" << run.hpz_partition_size
            << " quantized=" << run.quantized_weights << run.quantized_gradients
            << " offload=" << run.offload << " tier=" << run.tier
            << " lossless=" << run.lossless << " tied=" << run.tied
            << " clip=" << run.clip << " kv_heads=" << run.kv_heads
            << " moments=" << run.moments << " length=" << run.length
            << " layers=" << run.layers << " " << DTypeName(run.dtype)
            << " steps=" << run.steps;
}

}  // namespace tessera::train
