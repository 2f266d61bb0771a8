// The options of a training run, which are the same on all ranks. settings/
// makes them from the command line (RunOptionsFrom).
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "offload/tier/memory_tier.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/model_files/model_config.h"
#include "tools/train/settings/batch_schedule.h"
#include "tools/train/settings/learning_rate.h"
#include "topology/config/parallel_config.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {

using topology::MeshSizes;

enum class ReduceChoice {
  kAuto,            // The faster one in simulation, or the smaller if equal.
  kEachMicroBatch,  // Least memory.
  kLastMicroBatch,  // Least traffic; holds whole gradients for a step.
};

enum class GraphChoice {
  kOff,
  kAuto,  // On a GPU, for models that kGraphParameters limits.
  kOn,
};

// The largest model for which GraphChoice::kAuto captures graphs. For larger
// models the host enqueues work faster than the GPU executes it: launches take
// less than a hundredth of a step.
inline constexpr int64_t kGraphParameters = 200'000'000;

struct RunOptions {
  MeshSizes mesh = {};
  model_files::ModelConfig model = {};
  DType dtype = DType::kF32;
  // The linear layers of blocks multiply in fp8
  // (tensor_parallel/layers/linear_products.h). Each step then ends with
  // LlamaLayers::FinishFp8Step.
  bool fp8 = false;

  int64_t batch = 8;  // Sequences per step, over all ranks.
  // The batch of the first step, and the number of steps until it reaches
  // `batch`; 0: no warm-up.
  int64_t first_batch = 0;
  int64_t batch_warmup_steps = 0;
  int64_t micro_batch = 1;  // Sequences per micro-batch.
  int64_t length = 128;
  int64_t steps = 1;
  uint64_t seed = 1;
  // Sets elements [begin, begin + n) that a parameter holds, a tensor of f32 in
  // host memory, to their initial weights. Several threads may call it. Not
  // called for adapters. If null, weights are random numbers derived from
  // `seed`.
  std::function<absl::Status(const tensor_parallel::Parameter& parameter,
                             int64_t begin, TensorView elements)>
      first_weights = nullptr;
  double dropout = 0;  // See tensor_parallel/blocks/transformer_block.h.
  // tensor_parallel::LossTerms for the gradients. Reported losses exclude them.
  double label_smoothing = 0;
  double z_loss = 0;
  // If set, sequences 2k and 2k + 1 of a batch are a chosen and a rejected
  // completion, and the loss is that of DPO with this beta
  // (model/preference_loss.h). Micro-batches have whole pairs.
  std::optional<double> dpo_beta = {};
  // For mixtures of experts (tensor_parallel::MoeOptions); without `balance`
  // the model's value. The last is the step by which routers with sigmoid
  // scores move their biases.
  std::optional<double> balance = {};
  double router_z_loss = 0;
  double expert_capacity = 0;
  double router_bias_rate = 0.001;
  // If above 0, the limit of the scores of attention before the softmax
  // (step/qk_clip.h). The model has neither norms of heads nor caps of scores.
  double qk_clip = 0;
  // If its rank is above 0, only the adapters of the blocks' linear layers (in
  // attention, MLPs or both) are trained.
  tensor_parallel::LoraOptions lora = {};
  bool lora_attention = true;
  bool lora_mlp = true;
  // The codec (offload::CreateCodec) of the blocks' frozen matrices
  // (zero3::ShardedStateOptions::frozen_codec); empty: they are not quantized.
  std::string base_codec = "";
  // The token that ends a document. If set, tokens attend only to their own
  // document; otherwise to all earlier tokens of the sequence.
  std::optional<int64_t> document_end = {};
  LearningRate learning_rate = {};
  int64_t spike_window = 0;  // See RunProgress.

  // The name of a generator, "auto", or "file" for `schedule_table`.
  std::string schedule = "1f1b";
  std::string schedule_table = "";  // See pipeline/schedule/schedule_text.h.
  int64_t chunks = 1;               // Stages per pipeline rank.
  // The layers of each stage; empty: an even split.
  std::vector<int64_t> layers_per_stage = {};
  bool sequence_parallel = false;
  int64_t overlap_chunks = 0;  // See tensor_parallel/layers/linear.h.
  bool zigzag = true;          // Layout of sequences over context ranks.
  tensor_parallel::ContextAlgorithm context_attention =
      tensor_parallel::ContextAlgorithm::kRing;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;

  // Stage 3: the number of computations by which a layer's weights are gathered
  // ahead, and the limit in bytes of gathered weights (0: no limit). With a
  // limit the distance is chosen automatically.
  int64_t gather_ahead = 1;
  int64_t max_gathered_bytes = 0;
  // Stages 2 and 3: when a layer's gradients are reduced.
  ReduceChoice reduce = ReduceChoice::kAuto;

  // The computations of a step's micro-batches are captured and replayed
  // (pipeline::ExecutorOptions::captures).
  GraphChoice graphs = GraphChoice::kOff;

  // Maximum bytes of state, activations and working memory on the device; 0: no
  // limit. ResourceExhausted if a step needs more.
  int64_t device_budget = 0;

  // Allocates activations, the layers' working memory and the tensors between
  // stages of this rank. If null, these are in the device's memory, and tensors
  // that are sent to another rank in the engine's memory.
  std::shared_ptr<MemoryResource> memory = nullptr;

  // Holds saved activations between a forward and its backward
  // (model/activation_store.h). Not owned. Null: no offloading.
  offload::MemoryTier* activation_tier = nullptr;

  // The run overwrites the learning rate, the key prefix and the elements that
  // are counted in the norm.
  zero3::ShardedStateOptions state = {};

  BatchSchedule batches() const {
    return {batch, first_batch, batch_warmup_steps};
  }
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_H_
