#include "tensor_parallel/blocks/predict_block.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "base/tensor/counting_memory.h"
#include "base/tensor/tensor.h"
#include "collectives/communicator.h"
#include "collectives/counting/counting_engine.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;

// A group in which only this rank exists; null for a single rank.
absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(
    int64_t rank, int64_t ranks,
    const std::shared_ptr<CountingMemory>& memory) {
  TESSERA_ASSIGN_OR_RETURN(
      auto engine,
      collectives::CreateCountingEngine(
          {.rank = collectives::Rank(rank), .ranks = ranks, .memory = memory}));
  if (ranks == 1) return nullptr;
  return Communicator::Create(std::move(engine));
}

absl::Status RunPasses(TransformerBlock& block, int64_t sequences, TensorView x,
                       TensorView y, TensorView dx,
                       BlockActivations& activations, BlockMemory& memory) {
  TESSERA_RETURN_IF_ERROR(block.Forward(sequences, x, y, activations));
  memory.held = activations.bytes();
  activations.set_loss_scale(1);
  return block.Backward(y, dx, activations);
}

}  // namespace

absl::StatusOr<BlockMemory> PredictBlock(const TransformerBlockOptions& options,
                                         const BlockPlace& place) {
  if (place.sequences < 1 || place.length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a micro-batch of ", place.sequences, " sequences of ",
                     place.length, " tokens; give at least 1 of each"));
  }
  const auto counted = std::make_shared<CountingMemory>();
  CountingDevice device(counted, counted);
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device.CreateQueue("compute"));
  Ops ops(*queue);
  TESSERA_ASSIGN_OR_RETURN(
      const auto tensor_ranks,
      MakeGroup(place.tensor_rank, place.tensor_ranks, counted));
  TESSERA_ASSIGN_OR_RETURN(
      const auto context_ranks,
      MakeGroup(place.context_rank, place.context_ranks, counted));
  const auto layout_of =
      place.zigzag ? SequenceLayout::Zigzag : SequenceLayout::Contiguous;
  TESSERA_ASSIGN_OR_RETURN(const SequenceLayout layout,
                           layout_of(place.length, place.context_ranks));
  const TensorGroup tensor = TensorGroup(ops, tensor_ranks.get())
                                 .WithSequenceParallel(place.sequence_parallel)
                                 .WithOverlapChunks(place.overlap_chunks);
  TESSERA_ASSIGN_OR_RETURN(
      TransformerBlock block,
      TransformerBlock::Create(tensor,
                               {.group = TensorGroup(ops, context_ranks.get()),
                                .layout = layout,
                                .algorithm = place.algorithm},
                               options));
  BlockMemory memory = {.parameters = counted->live_bytes()};
  TESSERA_ASSIGN_OR_RETURN(const TokenBatch batch,
                           block.BatchOf(place.sequences));
  const int64_t rows = tensor.TokensBetweenLayers(batch.tokens).size();
  const auto create = [&] {
    return Tensor::Create(options.attention.dtype,
                          {{rows, options.attention.width}}, counted);
  };
  TESSERA_ASSIGN_OR_RETURN(Tensor x, create());
  TESSERA_ASSIGN_OR_RETURN(Tensor y, create());
  TESSERA_ASSIGN_OR_RETURN(Tensor dx, create());
  const int64_t before = counted->live_bytes();
  TensorPool pool(counted, queue.get());
  BlockActivations activations(pool);
  TESSERA_RETURN_IF_ERROR(RunPasses(block, place.sequences, x.view(), y.view(),
                                    dx.view(), activations, memory));
  memory.pool_peak = pool.peak_bytes();
  memory.working =
      counted->live_bytes() - before - pool.taken_bytes() - pool.free_bytes();
  return memory;
}

}  // namespace tessera::tensor_parallel
