// Compares the resident memory of a run's processes with the prediction:
//
//   bazel run //tools/train/predict:resident_check --
//       --model=llama-10m --mesh=dp2 --zero=1 --batch=8
//
// Takes the flags of //tools/train, without offload. Each rank is a process
// that trains four steps over shared memory.
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/cli/cli.h"
#include "tools/text/corpus.h"
#include "tools/text/tokenizer.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/loop/train_rank.h"
#include "tools/train/predict/print_prediction.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings_flags.h"

namespace tessera::train {
namespace {

absl::StatusOr<std::shared_ptr<const text::Corpus>> SomeText() {
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text += "rank " + std::to_string(i * i % 97) + " has bytes\n";
  }
  const std::string texts[] = {text};
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<const text::Corpus> corpus,
      text::Corpus::FromTexts(texts, text::ByteTokenizer()));
  return corpus;
}

absl::Status TrainAndCompare(collectives::Communicator& world,
                             const RunOptions& options,
                             const RunPrediction& prediction) {
  TESSERA_ASSIGN_OR_RETURN(const auto corpus, SomeText());
  TESSERA_ASSIGN_OR_RETURN(
      const text::Samples samples,
      text::Samples::Create(corpus, {.sequence = options.length, .seed = 1}));
  const int64_t before = ReadResidentMemory().resident;
  tensor_parallel::CpuOps ops({.threads = 1});
  TESSERA_ASSIGN_OR_RETURN(auto rank,
                           TrainRank::Create(world, options, samples, ops));
  const int64_t started = ReadResidentMemory().peak_resident;
  for (int step = 0; step < 4; ++step) {
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
  }
  const int64_t number = world.rank().value();
  const RankPrediction& predicted =
      prediction.ranks[static_cast<size_t>(number)];
  const auto measured =
      static_cast<double>(ReadResidentMemory().peak_resident - before);
  const auto bytes = static_cast<double>(predicted.peak_bytes());
  std::cout << absl::StrFormat(
                   "rank %d: %.2f MiB more than before it began (%.2f at its "
                   "start); predicted %.2f, %+.1f %%\n",
                   number, measured / (1 << 20),
                   static_cast<double>(started - before) / (1 << 20),
                   bytes / (1 << 20), 100 * (bytes / measured - 1))
            << std::flush;
  return absl::OkStatus();
}

absl::Status Run(const SettingsFlags& flags) {
  TESSERA_ASSIGN_OR_RETURN(Settings settings, flags.Read());
  settings.offload = "none";
  TESSERA_ASSIGN_OR_RETURN(
      const model_files::ModelConfig model,
      ModelOf(settings, text::ByteTokenizer().vocabulary_size()));
  TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
                           PredictRun(settings, model));
  TESSERA_ASSIGN_OR_RETURN(const RunOptions options,
                           RunOptionsFrom(settings, model));
  PrintPredictionText(prediction, std::cout);
  std::cout << std::flush;
  const auto outcomes = collectives::RunSharedMemory(
      options.mesh.world_size(), [&](collectives::Communicator& world) {
        return TrainAndCompare(world, options, prediction);
      });
  for (const auto& outcome : outcomes) {
    TESSERA_RETURN_IF_ERROR(outcome.status);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::train

int main(int argc, char** argv) {
  tessera::train::SettingsFlags flags;
  return tessera::tools::RunTool(
      {.name = "train/predict/testing:resident_check",
       .summary = "Compares the memory of a run's processes with what is "
                  "predicted.",
       .example = "--model=llama-10m --mesh=dp2",
       .flags = flags.Flags()},
      argc, argv, [&] { return tessera::train::Run(flags); });
}
