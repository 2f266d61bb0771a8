#include "tools/train/testing/mesh_run.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/testing/run_ranks.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/testing/small_text.h"
#include "zero3/checkpoint/state_blocks.h"

namespace tessera::train::testing {
namespace {

using zero3::StatePart;

// The index of each held element in the whole tensor.
std::vector<int64_t> WholeElements(const HeldTensor& held) {
  const int64_t width = held.shape.size() == 2 ? held.shape[1] : 1;
  std::vector<int64_t> elements;
  for (const auto& rows : held.rows) {
    for (int64_t r = rows.range.begin; r < rows.range.end; ++r) {
      for (int64_t c = held.columns.begin; c < held.columns.end; ++c) {
        elements.push_back(r * width + c);
      }
    }
  }
  return elements;
}

}  // namespace

RunOptions SmallRun() {
  RunOptions options;
  options.model = {.vocabulary = 267,
                   .hidden = 24,
                   .intermediate = 38,
                   .layers = 4,
                   .heads = 6,
                   .kv_heads = 2,
                   .head_size = 4};
  options.model.initializer_range = 0.1;
  options.batch = 8;
  options.length = 12;
  options.steps = 6;
  options.seed = 7;
  options.learning_rate = {.peak = 0.01, .least = 0.001, .total_steps = 6};
  options.state.clip_norm = 1;
  return options;
}

RunOptions SmallMixture() {
  RunOptions options = SmallRun();
  options.model.architecture = model_files::Architecture::kDots1;
  options.model.mixture = {.experts = 8,
                           .per_token = 2,
                           .intermediate = 5,
                           .shared_intermediate = 10,
                           .dense_layers = 1};
  options.router_bias_rate = 0.01;
  return options;
}

RunOptions SmallDeepSeek(bool has_query_latent) {
  RunOptions options = SmallMixture();
  model_files::ModelConfig& model = options.model;
  model.architecture = model_files::Architecture::kDeepSeekV3;
  model.kv_heads = model.heads;
  model.head_size = 7;
  model.latent = {.query_rank = has_query_latent ? 9 : 0,
                  .kv_rank = 5,
                  .nope = 3,
                  .rope = 4,
                  .value = 6};
  return options;
}

namespace {

std::string OptimizerName(zero3::OptimizerKind kind) {
  switch (kind) {
    case zero3::OptimizerKind::kAdamW:
      return "adamw";
    case zero3::OptimizerKind::kSgd:
      return "sgd";
    case zero3::OptimizerKind::kMuon:
      return "muon";
    case zero3::OptimizerKind::kLion:
      return "lion";
    case zero3::OptimizerKind::kAdafactor:
      return "adafactor";
    case zero3::OptimizerKind::kShampoo:
      return "shampoo";
  }
  return "";
}

}  // namespace

RunIdentity IdentityOf(const RunOptions& options) {
  return {
      .model = options.model,
      .seed = options.seed,
      .batch = options.batch,
      .batch_warmup = options.batch_warmup_steps == 0
                          ? ""
                          : absl::StrCat(options.first_batch, ":",
                                         options.batch_warmup_steps),
      .length = options.length,
      .corpus = SmallText()->fingerprint(),
      .vocabulary = text::ByteTokenizer().vocabulary_size(),
      .decay = options.state.decayed == zero3::DecayedParameters::kAll
                   ? "all"
                   : "matrices",
      .optimizer = OptimizerName(options.state.optimizer),
      .shampoo_block = options.state.optimizer == zero3::OptimizerKind::kShampoo
                           ? options.state.shampoo.block
                           : 0,
      .lora = {.rank = options.lora.rank,
               .alpha = options.lora.alpha,
               .targets = !options.lora_mlp         ? "attention"
                          : !options.lora_attention ? "mlp"
                                                    : "all"}};
}

std::vector<absl::Status> OnEachRank(
    const RunOptions& options,
    const std::function<absl::Status(TrainRank&)>& body,
    const text::Samples* samples) {
  const int64_t ranks = options.mesh.world_size();
  const auto small = text::Samples::Create(
      SmallText(), {.sequence = options.length, .seed = options.seed});
  if (samples == nullptr) samples = &*small;
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  const auto run = [&](collectives::Communicator& world) -> absl::Status {
    tensor_parallel::CpuOps ops({.threads = 1});
    TESSERA_ASSIGN_OR_RETURN(auto rank,
                             TrainRank::Create(world, options, *samples, ops));
    return body(*rank);
  };
  // Returns all statuses: a failing rank does not abort the others.
  for (const absl::Status& status :
       collectives::RunRanks(ranks, [&](collectives::Communicator& world) {
         results[static_cast<size_t>(world.rank().value())] = run(world);
         return absl::OkStatus();
       })) {
    if (!status.ok()) return {status};
  }
  return results;
}

absl::Status OnRanks(const RunOptions& options,
                     const std::function<absl::Status(TrainRank&)>& body,
                     const text::Samples* samples) {
  absl::Status first;
  for (const absl::Status& status : OnEachRank(options, body, samples)) {
    first.Update(status);
  }
  return first;
}

absl::StatusOr<std::vector<double>> TrainTo(TrainRank& rank, int64_t end) {
  std::vector<double> losses;
  while (rank.steps() < end) {
    TESSERA_ASSIGN_OR_RETURN(const StepRecord record, rank.Step());
    losses.push_back(record.loss);
  }
  return losses;
}

absl::Status WholeState::Add(TrainRank& rank) {
  for (const ShardedModel::Part& of_model : rank.model().parts()) {
    for (const zero3::ModelParameter& parameter :
         of_model.state->layout().model().all()) {
      for (const StatePart part : zero3::kAllStateParts) {
        TESSERA_RETURN_IF_ERROR(AddOne(rank, of_model, parameter, part));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status WholeState::AddOne(TrainRank& rank,
                                const ShardedModel::Part& of_model,
                                const zero3::ModelParameter& parameter,
                                StatePart part) {
  zero3::ShardedState& state = *of_model.state;
  const auto format =
      zero3::StateFormatOf(parameter, zero3::MomentsOf(state), part);
  const zero3::Extent extent =
      state.layout().ExtentOf(state.rank(), parameter.id);
  if (!format || extent.size() == 0) return absl::OkStatus();
  const HeldTensor held = HeldTensorOf(
      *of_model.parameters[static_cast<size_t>(parameter.id.value())]);
  const std::vector<int64_t> whole = WholeElements(held);
  TESSERA_ASSIGN_OR_RETURN(zero3::OpenPart open,
                           zero3::OpenPart::Open(state, parameter.id, part));
  const std::byte* bytes = open.array().bytes;
  bytes += format->ScaleBytes(extent.slot);
  const auto width = static_cast<size_t>(SizeInBytes(format->dtype));
  absl::Status status;
  const absl::MutexLock lock(&mutex_);
  Cells& cells = cells_[{
      std::string(SourceOfTied(rank.options().model, held.name)), part}];
  cells.bits.resize(static_cast<size_t>(held.whole_elements()));
  cells.is_set.resize(cells.bits.size());
  for (int64_t e = extent.begin; e < extent.end; ++e, bytes += width) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes, width);
    const auto at = static_cast<size_t>(whole[static_cast<size_t>(e)]);
    if (cells.is_set[at] && cells.bits[at] != bits) {
      status.Update(absl::DataLossError(absl::StrCat(
          "copies of element ", at, " of the ", zero3::StatePartName(part),
          " of ", held.name, " differ")));
    }
    cells.bits[at] = bits;
    cells.is_set[at] = true;
  }
  status.Update(open.Close(/*changed=*/false));
  return status;
}

absl::StatusOr<WholeBits> WholeState::bits() const {
  const absl::MutexLock lock(&mutex_);
  WholeBits all;
  for (const auto& [key, cells] : cells_) {
    for (size_t i = 0; i < cells.is_set.size(); ++i) {
      if (cells.is_set[i]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("no rank has element ", i, " of ", key.first));
    }
    all[key] = cells.bits;
  }
  return all;
}

std::string NewRunDirectory(const std::string& name) {
  const char* const parent = std::getenv("TEST_TMPDIR");
  const std::string path =
      absl::StrCat(parent == nullptr ? "/tmp" : parent, "/", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace tessera::train::testing
