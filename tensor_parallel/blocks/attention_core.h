// AttentionCore: what lies between the two projections of an attention block:
// heads cut out of the fused projection, rotated, and attended to, sequence by
// sequence.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_CORE_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_CORE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention_options.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/fused_partition.h"

namespace tessera::tensor_parallel {

// What is kept of a micro-batch between its passes.
struct AttentionActivations {
  explicit AttentionActivations(TensorPool& pool)
      : query(pool),
        key(pool),
        value(pool),
        output(pool),
        log_sum_exp(pool),
        qkv_gradient(pool) {}

  int64_t bytes() const;
  void Clear();
  // Of the core: the backward computes them again where they are not there.
  void ClearCore() {
    output.Release();
    log_sum_exp.Release();
  }

  PooledTensor query;  // [tokens, its heads, head_size], rotated.
  PooledTensor key;    // [tokens, its kv heads, head_size], rotated.
  PooledTensor value;
  PooledTensor output;       // [tokens, its heads, head_size]
  PooledTensor log_sum_exp;  // [tokens, its heads], statistics.
  PooledTensor qkv_gradient;
};

class AttentionCore {
 public:
  // Refuses what Attention::Create does.
  static absl::StatusOr<AttentionCore> Create(const TensorGroup& group,
                                              const ContextGroup& context,
                                              const AttentionOptions& options);
  static absl::StatusOr<ContextAttentionOptions> OptionsOf(
      const TensorGroup& group, const AttentionOptions& options);

  // Of the fused projection: queries, keys, values.
  const FusedPartition& partition() const { return partition_; }
  const std::shared_ptr<ContextAttention>& attention() const {
    return attention_;
  }
  absl::StatusOr<TokenBatch> BatchOf(int64_t sequences) const;

  // Query, key and value from the projection's result.
  absl::Status SetHeads(const TokenBatch& batch, TensorView qkv,
                        AttentionActivations& activations);
  // Output and log_sum_exp from query, key and value.
  absl::Status Attend(const TokenBatch& batch,
                      AttentionActivations& activations);
  // qkv_gradient from that of the output, as [tokens, its heads x head_size];
  // what is not needed after that is released.
  absl::Status Backward(const TokenBatch& batch,
                        ConstTensorView output_gradient,
                        AttentionActivations& activations);

 private:
  AttentionCore(const TensorGroup& group, const AttentionOptions& options,
                const ContextAttentionOptions& local, FusedPartition partition,
                std::vector<int64_t> positions,
                std::shared_ptr<ContextAttention> attention)
      : group_(group),
        options_(options),
        local_(local),
        partition_(std::move(partition)),
        positions_(std::move(positions)),
        attention_(std::move(attention)) {}

  absl::StatusOr<TensorView> ReserveHeads(const TokenBatch& batch,
                                          int64_t heads,
                                          PooledTensor& memory) const;
  absl::StatusOr<TensorView> PartOf(TensorView qkv, int64_t part) const;
  absl::Status Rotate(const TokenBatch& batch, bool inverse, TensorView x);
  absl::Status Propagate(const TokenBatch& batch,
                         ConstTensorView output_gradient,
                         const AttentionActivations& activations,
                         const ContextAttention::Gradients& gradients);
  absl::Status SetQkvGradient(const TokenBatch& batch,
                              const ContextAttention::Gradients& gradients,
                              AttentionActivations& activations);

  TensorGroup group_;
  AttentionOptions options_;
  ContextAttentionOptions local_;  // With the heads of this rank.
  FusedPartition partition_;
  std::vector<int64_t> positions_;
  std::shared_ptr<ContextAttention> attention_;  // None without heads.
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_CORE_H_
