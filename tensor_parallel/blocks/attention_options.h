// What an attention block is made of: its sizes, and the ranks that share the
// positions of its sequences.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_OPTIONS_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "base/dtype/dtype.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct AttentionOptions {
  int64_t width = 0;
  int64_t heads = 1;     // Of all ranks; kv_heads divide them.
  int64_t kv_heads = 1;  // Fewer than ranks only where they divide these.
  int64_t head_size = 0;
  // Even head sizes only; none: no rotary positions.
  std::optional<double> rotary_base = 10000;
  bool causal = true;
  bool qkv_bias = false;
  bool output_bias = false;
  DType dtype = DType::kF32;
  bool sequence_parallel = false;
  // In how many tokens are gathered and sums sent (column_parallel_linear.h).
  int64_t overlap_chunks = 0;
};

// The ranks that share the positions of a sequence, with ops of their own
// device; of one rank where there is no context parallelism.
struct ContextGroup {
  TensorGroup group;
  SequenceLayout layout;
  // How they share the work: of Attention::CoreOptions. None: RingAttention.
  // Blocks that run one after the other may share it, and so its memory.
  std::shared_ptr<ContextAttention> core = nullptr;
};

// Tokens of a micro-batch that a rank has to do with.
struct TokenBatch {
  int64_t sequences = 0;
  Partition tokens;  // Of the rank's positions, among the tensor group.
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_OPTIONS_H_
