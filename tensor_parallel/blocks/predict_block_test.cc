// Compares predictions with blocks that compute in real memory.
#include "tensor_parallel/blocks/predict_block.h"

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/testing/mesh_case.h"
#include "tensor_parallel/layers/testing/layer_case.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Host memory with a count.
class LiveMemory final : public MemoryResource {
 public:
  MemoryKind kind() const override { return MemoryKind::kHost; }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    live_ += static_cast<int64_t>(bytes);
    return HostMemory()->Allocate(bytes, alignment);
  }
  void Deallocate(void* data, size_t bytes, size_t alignment) override {
    live_ -= static_cast<int64_t>(bytes);
    HostMemory()->Deallocate(data, bytes, alignment);
  }
  int64_t live() const { return live_; }

 private:
  std::atomic<int64_t> live_ = 0;
};

// Sizes that four ranks do not divide evenly.
TransformerBlockOptions OptionsOf(const MeshCase& mesh, Recompute recompute) {
  return {.attention = {.width = 12,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_size = 6,
                        .dtype = mesh.dtype},
          .hidden = 21,
          .recompute = recompute};
}

absl::StatusOr<BlockMemory> Measure(const TransformerBlockOptions& options,
                                    const MeshCase& mesh,
                                    const TensorGroup& tensor,
                                    const TensorGroup& context) {
  const auto memory = std::make_shared<LiveMemory>();
  TESSERA_ASSIGN_OR_RETURN(
      TransformerBlock block,
      TransformerBlock::Create(
          tensor.WithMemory(memory),
          {.group = context.WithMemory(memory), .layout = mesh.layout()},
          options));
  BlockMemory measured = {.parameters = memory->live()};
  TESSERA_ASSIGN_OR_RETURN(const TokenBatch batch,
                           block.BatchOf(mesh.sequences));
  const int64_t rows = tensor.TokensBetweenLayers(batch.tokens).size();
  Tensor x = *RandomTensor(mesh.dtype, {{rows, options.attention.width}}, 1);
  Tensor y = *RandomTensor(mesh.dtype, {{rows, options.attention.width}}, 2);
  Tensor dx = *Tensor::Create(mesh.dtype, {{rows, options.attention.width}});
  TensorPool pool(memory);
  BlockActivations activations(pool);
  activations.set_loss_scale(1);
  // Later micro-batches need no more.
  for (int i = 0; i < 2; ++i) {
    TESSERA_RETURN_IF_ERROR(
        block.Forward(mesh.sequences, x.view(), y.view(), activations));
    measured.held = activations.bytes();
    TESSERA_RETURN_IF_ERROR(block.Backward(y.view(), dx.view(), activations));
  }
  measured.pool_peak = pool.peak_bytes();
  measured.working = memory->live() - measured.parameters - pool.taken_bytes() -
                     pool.free_bytes();
  return measured;
}

absl::Status Compare(const TransformerBlockOptions& options,
                     const MeshCase& mesh, const TensorGroup& tensor,
                     const TensorGroup& context) {
  TESSERA_ASSIGN_OR_RETURN(const BlockMemory real,
                           Measure(options, mesh, tensor, context));
  TESSERA_ASSIGN_OR_RETURN(
      const BlockMemory predicted,
      PredictBlock(options, {.sequences = mesh.sequences,
                             .length = mesh.length,
                             .tensor_ranks = mesh.tp,
                             .tensor_rank = tensor.rank(),
                             .sequence_parallel = mesh.sequence_parallel,
                             .context_ranks = mesh.cp,
                             .context_rank = context.rank(),
                             .zigzag = mesh.zigzag}));
  if (predicted.held == real.held && predicted.pool_peak == real.pool_peak &&
      predicted.working == real.working &&
      predicted.parameters == real.parameters) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      "held ", predicted.held, " ", real.held, ", pool ", predicted.pool_peak,
      " ", real.pool_peak, ", working ", predicted.working, " ", real.working,
      ", parameters ", predicted.parameters, " ", real.parameters));
}

void ExpectAsMeasured(const TransformerBlockOptions& options,
                      const MeshCase& mesh) {
  EXPECT_THAT(
      RunMesh(mesh,
              [&](const TensorGroup& tensor, const TensorGroup& context) {
                return Compare(options, mesh, tensor, context);
              }),
      Each(IsOk()))
      << mesh << " " << options.recompute;
}

TEST(PredictBlockTest, EveryMeshAndRecomputationMatchesMeasurement) {
  for (MeshCase mesh :
       {MeshCase{}, {.tp = 2}, {.tp = 4}, {.cp = 2}, {.tp = 2, .cp = 2}}) {
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        mesh.dtype = dtype;
        mesh.sequence_parallel = dtype == DType::kBF16 && mesh.tp > 1;
        mesh.zigzag = dtype == DType::kBF16;
        mesh.sequences = dtype == DType::kBF16 ? 3 : 1;
        ExpectAsMeasured(OptionsOf(mesh, recompute), mesh);
      }
    }
  }
}

TEST(PredictBlockTest, MixturesMatchMeasurement) {
  const MeshCase mesh = {.dtype = DType::kF32};
  TransformerBlockOptions options = OptionsOf(mesh, Recompute::kNone);
  options.moe.experts = 4;
  options.moe.hidden = 10;
  options.moe.router.per_token = 2;
  ExpectAsMeasured(options, mesh);
}

TEST(PredictBlockTest, LatentAttentionMatchesMeasurement) {
  for (const bool sequence_parallel : {false, true}) {
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective}) {
      const MeshCase mesh = {.tp = sequence_parallel ? 2 : 3,
                             .cp = 2,
                             .sequence_parallel = sequence_parallel,
                             .dtype = DType::kF32};
      TransformerBlockOptions options = OptionsOf(mesh, recompute);
      options.attention.kv_heads = options.attention.heads;
      options.attention.latent = {.query_rank = sequence_parallel ? 5 : 0,
                                  .kv_rank = 7,
                                  .nope = 2,
                                  .rope = 4,
                                  .value = 5};
      ExpectAsMeasured(options, mesh);
    }
  }
}

TEST(PredictBlockTest, LargeBlocksNeedNoMemory) {
  const TransformerBlockOptions options = {.attention = {.width = 16384,
                                                         .heads = 128,
                                                         .kv_heads = 8,
                                                         .head_size = 128,
                                                         .dtype = DType::kBF16},
                                           .hidden = 53248,
                                           .recompute = Recompute::kFull};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const BlockMemory memory,
      PredictBlock(options, {.length = 1 << 17, .context_ranks = 16}));
  EXPECT_EQ(memory.held, (int64_t{1} << 13) * 16384 * 2);
}

TEST(PredictBlockTest, RejectsInvalidInputs) {
  const auto refused = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  const TransformerBlockOptions options = OptionsOf({}, Recompute::kNone);
  EXPECT_THAT(PredictBlock(options, {.length = 0}),
              refused("1 sequences of 0 tokens; give at least 1"));
  EXPECT_THAT(PredictBlock(options, {.sequences = 0, .length = 8}),
              refused("0 sequences of 8 tokens"));
  EXPECT_FALSE(PredictBlock(options, {.length = 8, .tensor_ranks = 0}).ok());
  EXPECT_FALSE(
      PredictBlock(options, {.length = 8, .tensor_ranks = 2, .tensor_rank = 2})
          .ok());
  EXPECT_FALSE(PredictBlock(options, {.length = 8, .tensor_ranks = 3}).ok());
  EXPECT_FALSE(PredictBlock({}, {.length = 8}).ok());
}

}  // namespace
}  // namespace tessera::tensor_parallel
