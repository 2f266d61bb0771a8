// Benchmarks training steps of one rank on the CPU: tokens/s, model FLOP/s as a
// share of the machine's rate for matrix products of this type, and the time
// per operation.
//
//   bazel run //tools/train:step_benchmark -- --model=llama-125m --dtype=bf16
//
// compare_torch.py runs it and PyTorch, alternating step by step.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/json/json.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "base/tensor/tensor.h"
#include "collectives/engine/operation_context.h"
#include "collectives/in_process/in_process.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/cli/cli.h"
#include "tools/cli/typed_flags.h"
#include "tools/model_files/model_config.h"
#include "tools/text/corpus.h"
#include "tools/text/tokenizer.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings_flags.h"
#include "tools/train/step/train_rank.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;

// Nanoseconds of a step by operation. "optimizer" and "rest" are added at the
// end of the step, so that the values add up to the whole step.
using Shares = std::map<std::string_view, int64_t>;

struct MeasuredStep {
  int64_t nanoseconds = 0;
  Shares shares = {};
};

// FLOP/s of a product of 2048 x 2048 matrices; the best of five measurements.
absl::StatusOr<double> ProductRate(tensor_parallel::Ops& ops, DType dtype) {
  constexpr int64_t kSize = 2048;
  std::vector<Tensor> tensors;
  for (int i = 0; i < 3; ++i) {
    TESSERA_ASSIGN_OR_RETURN(Tensor tensor,
                             Tensor::Create(dtype, {{kSize, kSize}}));
    TESSERA_RETURN_IF_ERROR(
        ops.Run(tensor_parallel::op::Fill{1.0 / kSize, tensor.view()}));
    tensors.push_back(std::move(tensor));
  }
  int64_t least = INT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const int64_t begin = MonotonicNanos();
    TESSERA_RETURN_IF_ERROR(
        ops.Run(tensor_parallel::op::Gemm{{.transpose_b = true},
                                          tensors[0].view(),
                                          tensors[1].view(),
                                          tensors[2].view()}));
    least = std::min(least, MonotonicNanos() - begin);
  }
  return 2e9 * kSize * kSize * kSize / static_cast<double>(least);
}

// One rank, its threads, and its training text.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const Settings& settings) {
    std::unique_ptr<Trainer> trainer(
        new Trainer(static_cast<int>(settings.threads)));
    TESSERA_RETURN_IF_ERROR(trainer->Init(settings));
    return trainer;
  }

  const RunOptions& options() const { return options_; }
  double tokens() const {
    return static_cast<double>(options_.batch * options_.length);
  }
  double flops() const {
    return options_.model.TrainingFlopsPerToken(options_.length) * tokens();
  }
  absl::StatusOr<double> Rate() {
    const bool is_f32 = options_.dtype == DType::kF32;
    return ProductRate(ops_, is_f32 ? DType::kF32 : DType::kBF16);
  }

  absl::StatusOr<MeasuredStep> Step() {
    shares_.clear();
    const int64_t begin = MonotonicNanos();
    TESSERA_RETURN_IF_ERROR(rank_->Step().status());
    MeasuredStep step = {MonotonicNanos() - begin, shares_};
    const StepTimes& times = rank_->times();
    step.shares["optimizer"] = times.update_end - times.update_begin;
    int64_t rest = step.nanoseconds;
    for (const auto& [name, nanoseconds] : step.shares) rest -= nanoseconds;
    step.shares["rest"] = rest;
    return step;
  }

 private:
  explicit Trainer(int threads)
      : pool_(std::make_shared<ThreadPool>(threads)), ops_({.pool = pool_}) {
    ops_.Observe(MonotonicNanos,
                 [this](std::string_view name, int64_t begin, int64_t end) {
                   shares_[name] += end - begin;
                 });
  }

  absl::Status Init(const Settings& settings) {
    TESSERA_ASSIGN_OR_RETURN(
        const model_files::ModelConfig model,
        ModelOf(settings, text::ByteTokenizer().vocabulary_size()));
    TESSERA_ASSIGN_OR_RETURN(options_, RunOptionsFrom(settings, model));
    options_.state.adamw.pool = pool_;
    std::string letters;
    for (int64_t i = 0; i < 64 * (options_.batch * options_.length + 1); ++i) {
      letters += static_cast<char>('a' + i * i % 23);
    }
    const std::string texts[] = {std::move(letters)};
    TESSERA_ASSIGN_OR_RETURN(
        std::shared_ptr<const text::Corpus> corpus,
        text::Corpus::FromTexts(texts, text::ByteTokenizer()));
    TESSERA_ASSIGN_OR_RETURN(
        text::Samples samples,
        text::Samples::Create(std::move(corpus),
                              {.sequence = options_.length, .seed = 1}));
    samples_ = std::make_unique<text::Samples>(std::move(samples));
    TESSERA_ASSIGN_OR_RETURN(auto engines,
                             collectives::CreateInProcessEngines(1));
    TESSERA_ASSIGN_OR_RETURN(
        world_, collectives::Communicator::Create(std::move(engines[0])));
    TESSERA_ASSIGN_OR_RETURN(
        rank_, TrainRank::Create(*world_, options_, *samples_, ops_));
    return rank_->Step().status();  // Warm-up.
  }

  std::shared_ptr<ThreadPool> pool_;
  tensor_parallel::CpuOps ops_;
  Shares shares_;
  RunOptions options_;
  std::unique_ptr<text::Samples> samples_;
  std::unique_ptr<collectives::Communicator> world_;
  std::unique_ptr<TrainRank> rank_;
};

nlohmann::json ConfigOf(const model_files::ModelConfig& model) {
  return {{"vocabulary", model.vocabulary},
          {"hidden", model.hidden},
          {"intermediate", model.intermediate},
          {"layers", model.layers},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_size", model.head_size},
          {"rope_theta", model.rotary.base},
          {"norm_epsilon", model.norm_epsilon},
          {"tied_embeddings", model.tied_embeddings}};
}

absl::Status AnswerRequests(Trainer& trainer) {
  const nlohmann::json ready = {{"config", ConfigOf(trainer.options().model)}};
  std::cout << DumpJson(ready) << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    TESSERA_ASSIGN_OR_RETURN(const MeasuredStep step, trainer.Step());
    const double seconds = static_cast<double>(step.nanoseconds) * 1e-9;
    const nlohmann::json answer = {
        {"seconds", seconds},
        {"tokens_per_second", trainer.tokens() / seconds}};
    std::cout << DumpJson(answer) << std::endl;
  }
  return absl::OkStatus();
}

void Print(const Settings& settings, const Trainer& trainer,
           const MeasuredStep& step, double rate) {
  const double seconds = static_cast<double>(step.nanoseconds) * 1e-9;
  const double flops = trainer.flops() / seconds;
  std::cout << absl::StrFormat(
      "%s, %s: %d sequences of %d tokens a step, %d at a time, threads: %d\n"
      "median step  %.3f s, %.0f tokens/s\n"
      "model        %.1f GFLOP/s, %.0f %% of the product rate (%.1f GFLOP/s)\n"
      "time\n",
      settings.model, DTypeFlag(settings.parallel), settings.batch,
      settings.length, settings.parallel.micro_batch, settings.threads, seconds,
      trainer.tokens() / seconds, flops * 1e-9, 100 * flops / rate,
      rate * 1e-9);
  std::vector<std::pair<int64_t, std::string_view>> sorted;
  for (const auto& [name, nanoseconds] : step.shares) {
    sorted.emplace_back(-nanoseconds, name);
  }
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [nanoseconds, name] : sorted) {
    std::cout << absl::StrFormat("  %-26s %5.1f %%\n", name,
                                 -100.0 * static_cast<double>(nanoseconds) /
                                     static_cast<double>(step.nanoseconds));
  }
}

absl::Status Run(const SettingsFlags& flags, int64_t rounds, bool on_request) {
  TESSERA_ASSIGN_OR_RETURN(Settings settings, flags.Read());
  settings.parallel.mesh = {};
  settings.zero = 0;
  settings.offload = "none";
  settings.device = "cpu";
  TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
  TESSERA_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(settings));
  if (on_request) return AnswerRequests(*trainer);
  TESSERA_ASSIGN_OR_RETURN(const double rate, trainer->Rate());
  std::vector<MeasuredStep> steps;
  for (int64_t i = 0; i < rounds; ++i) {
    TESSERA_ASSIGN_OR_RETURN(MeasuredStep step, trainer->Step());
    steps.push_back(std::move(step));
  }
  const auto middle = steps.begin() + rounds / 2;
  std::nth_element(steps.begin(), middle, steps.end(),
                   [](const MeasuredStep& a, const MeasuredStep& b) {
                     return a.nanoseconds < b.nanoseconds;
                   });
  Print(settings, *trainer, *middle, rate);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::train

int main(int argc, char** argv) {
  tessera::train::SettingsFlags settings;
  std::vector<tessera::tools::Flag> flags =
      settings.Flags({"model", "dtype", "length", "batch", "micro_batch",
                      "recompute", "threads"});
  int64_t rounds = 5;
  bool on_request = false;
  flags.push_back(tessera::tools::RangeFlag("rounds", "measured steps", rounds,
                                            1, INT64_MAX));
  flags.push_back(tessera::tools::FieldFlag(
      "on_request",
      "takes a step for each line of standard input and answers with a line of "
      "JSON, instead of --rounds",
      on_request));
  return tessera::tools::RunTool(
      {.name = "train:step_benchmark",
       .summary = "Measures training steps of one rank on the CPU.",
       .example = "--model=llama-10m --dtype=bf16 --threads=2",
       .flags = flags},
      argc, argv,
      [&] { return tessera::train::Run(settings, rounds, on_request); });
}
