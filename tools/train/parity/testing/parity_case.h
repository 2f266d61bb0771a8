// The configurations of a small training run that are tested for parity: every
// configuration must give the same losses.
//
//   ParityCase run = {.mesh = {.dp = 2, .tp = 4}, .stage = 3};
//   TESSERA_ASSIGN_OR_RETURN(auto records, TrainCase(run));  // train_case.h
//
// No size of the model divides evenly: 257 words, 8 sequences of 13 tokens a
// step, 3 layers, 6 heads of 4 elements, hidden size 20, MLP size 27.
//
// ParityOptions lists the values of each option as the factors of a
// CoveringProblem:
//
//   for (const CoveringRow& row : CoveringArray(ParityProblem())) {
//     const ParityCase run = CaseOf(row);
//   }
#ifndef TESSERA_TOOLS_TRAIN_PARITY_TESTING_PARITY_CASE_H_
#define TESSERA_TOOLS_TRAIN_PARITY_TESTING_PARITY_CASE_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype/dtype.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/settings/run_options.h"
#include "zero3/layout/state_layout.h"

namespace tessera::train {

// All 35 meshes of 1, 2, 4 and 8 ranks over dp, pp, cp and tp.
inline std::vector<MeshSizes> EveryMesh() {
  constexpr int64_t kSizes[] = {1, 2, 4, 8};
  std::vector<MeshSizes> meshes;
  for (const int64_t ranks : kSizes) {
    for (const int64_t dp : kSizes) {
      for (const int64_t pp : kSizes) {
        for (const int64_t cp : kSizes) {
          if (ranks % (dp * pp * cp) != 0) continue;
          meshes.push_back({dp, pp, cp, ranks / (dp * pp * cp)});
        }
      }
    }
  }
  return meshes;
}

struct ParityCase {
  MeshSizes mesh = {};
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  std::vector<int64_t> layers_per_stage = {};  // Empty: even.
  int64_t micro_batch = 1;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  bool sequence_parallel = false;
  int64_t overlap_chunks = 0;
  bool zigzag = true;
  tensor_parallel::ContextAlgorithm context_attention =
      tensor_parallel::ContextAlgorithm::kRing;

  int stage = 0;  // ZeRO stage.
  zero3::LayoutKind layout = zero3::LayoutKind::kChunks;
  int64_t bucket_bytes = 25'000'000;
  int64_t persistence_threshold = 0;
  int64_t gather_ahead = 1;
  int64_t max_gathered_bytes = 0;
  std::string reduce = "auto";  // auto, each, last
  int64_t hpz_partition_size = 0;
  // none, optimizer, gradients, params, all (the state), activations
  std::string offload = "none";
  // none; host; file; spill: 8 KiB of host memory for all ranks together, and a
  // file.
  std::string tier = "none";
  bool lossless = false;
  // On a device, for an optimizer in a tier: memory for speculative steps,
  // which begin before the norm is known.
  int64_t speculative_bytes = 0;

  // The losses depend on these.
  bool quantized_weights = false;
  bool quantized_gradients = false;
  // llama, llama3.1 (scaled rotary frequencies, all biases), mistral (a
  // window), qwen2 (biases of queries, keys and values), qwen3 (norms of heads,
  // a window in some layers), mixtral (4 experts, softmax, balance), dots1 (8
  // experts, sigmoid, biases that move, a shared one, a layer without, a
  // capacity for all tokens), gemma (GELU, a scaled embedding), gemma2 (norms
  // of outputs, caps, windows in two of three layers), olmo2 (norms of outputs
  // alone, norms of all heads together), smollm3 (a layer without rotary
  // positions, yarn), gpt_oss (sinks, 4 experts with biases, clamps, windows in
  // two of three layers, yarn), deepseek2 (latent attention, groups of
  // experts), deepseek3 (the same with a latent vector of queries, sigmoids,
  // biases that move, yarn)
  std::string architecture = "llama";
  // Tokens attend only to their own document; a frequent letter ends it.
  bool documents = false;
  bool prompts = false;  // testing::SmallPairs, whose prompts are masked.
  // testing::SmallPreferences and the loss of DPO; needs an even micro_batch.
  bool dpo = false;
  bool tied = false;
  bool clip = false;
  double dropout = 0;
  bool loss_terms = false;  // Label smoothing and a z-loss.
  bool decay_all = false;   // Weight decay also applies to norms.
  // adafactor, adamw, lion, muon, sgd, shampoo
  std::string optimizer = "adamw";
  double qk_clip = 0;             // RunOptions::qk_clip.
  std::string param_groups = "";  // zero3::ParseParameterGroups.
  // If above 0, only adapters are trained: attention, mlp, or all.
  int64_t lora_rank = 0;
  std::string lora_targets = "all";
  // nf4: frozen matrices are held in NF4, and the sizes of the model are
  // multiples of its blocks on up to two tensor ranks. rounded: the same model,
  // whose first weights are rounded to NF4.
  std::string base_weights = "full";
  int64_t kv_heads = 2;
  std::string moments = "f32";  // f32, bf16, int8
  int64_t length = 13;
  int64_t layers = 3;
  DType dtype = DType::kF32;
  bool fp8 = false;  // Needs kBF16.
  // For kF16: the initial dynamic scale, which doubles after two steps.
  double loss_scale = 1024;
  // The sizes of the model are multiples of 16 on up to two tensor ranks, as
  // GPUs require for fp8. The length should then be a multiple of 16 too.
  bool multiples_of_16 = false;
  int64_t steps = 20;

  // 0: the processor; otherwise emulated devices with orders derived from this
  // seed.
  int64_t device_seed = 0;
  // On a device, the computations of a step are captured and replayed.
  bool graphs = false;
};

// The same model on one rank with all options at their defaults.
ParityCase PlainCase(const ParityCase& run);

// True if layers of this ParityCase::architecture have experts.
bool IsMixture(std::string_view architecture);

// The factor on the allowed difference of losses; 1 for moments of f32. With
// rounded moments, a difference in the last bit of a sum can change the
// rounding of an element.
double RoundingFactor(const ParityCase& run);

// The options of the run, without tiers.
RunOptions RunOptionsOf(const ParityCase& run);

// Prints "dp2,tp4 schedule=1f1b/1 micro_batch=1 ...".
std::ostream& operator<<(std::ostream& os, const ParityCase& run);

struct ParityOption {
  std::string name;
  std::vector<std::string> values;
};

// One option per factor of ParityProblem: the sizes of dp, pp, cp and tp with
// at most 8 ranks; every schedule, with 1 to 3 chunks; recomputation; and so
// on.
const std::vector<ParityOption>& ParityOptions();

// The problem of these options. Excludes impossible rows and, for most
// schedules, rows with more than two ranks along another axis.
CoveringProblem ParityProblem();

// False for rows that TrainRank rejects (chunks that a schedule does not have,
// kv heads that tp does not divide, offloaded state that ZeRO does not
// partition), and for rows that test nothing (a tier but nothing offloaded,
// compression without a tier, gather_ahead of weights that are never gathered,
// tp with moments that round differently in a slice of a parameter, chunks of
// tokens that are not exchanged, all-to-all attention on one context rank).
// Accepts partial rows like CoveringProblem::allowed.
bool IsPossible(const CoveringRow& row);

// The factor with this name, and the index of one of its values. Both must
// exist.
int OptionNumber(const std::string& name);
int ValueNumber(const std::string& option, const std::string& value);

// `row` is complete.
ParityCase CaseOf(const CoveringRow& row);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_TESTING_PARITY_CASE_H_
