// Opens the tokenizer, corpus and samples that --tokenizer, --data and --length
// select, and finds the default data.
//
//   TESSERA_ASSIGN_OR_RETURN(TrainingData data, OpenTrainingData(settings));
//   data.tokenizer->vocabulary_size();
//   data.samples->ReadTraining(index, tokens);
#ifndef TESSERA_TOOLS_TRAIN_LOOP_TRAINING_DATA_H_
#define TESSERA_TOOLS_TRAIN_LOOP_TRAINING_DATA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The data of a run. OpenTrainingData sets all members. Const calls are
// thread-safe.
struct TrainingData {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  // Shuffled by the seed. The last --validation_fraction and --test_fraction
  // are held out of training.
  std::optional<text::Samples> samples;
  // The files of the directory that --model names; empty for a preset.
  model_files::ModelSource source = {};
};

// Opens the data of a run. A path of --data may have a weight, "books:0.7",
// unless a file has this very name; then all paths have one, the weights add up
// to 1, and each path is a corpus of a blend (text::Blend). Without weights all
// paths form one corpus. With --objective=dpo they are text::OpenPreferences.
// The default of
// --tokenizer is described at OpenTokenizer; the default data is
// FindRepositoryTexts. The tokens of long texts are cached in --token_cache
// (text::TokenCache). The result is the same on every rank that sees the same
// files. InvalidArgument, with the flag, if the tokenizer or the data cannot be
// read, there are too few tokens for one sequence, or there are too few
// validation samples for --eval_batches.
absl::StatusOr<TrainingData> OpenTrainingData(const Settings& settings);

// Opens the tokenizer of --tokenizer. The default is the tokenizer in the
// model's directory, otherwise bytes. InvalidArgument, with the flag, if it
// cannot be read.
absl::StatusOr<std::shared_ptr<const text::Tokenizer>> OpenTokenizer(
    const Settings& settings);

// The identity of a run, which checkpoints record and `--resume` compares.
RunIdentity IdentityOf(const Settings& settings,
                       const model_files::ModelConfig& model,
                       const TrainingData& data);

// The limit of the default data, which are the sources and documents of this
// repository. It is enough for thousands of steps of the smallest model, and
// small because every rank holds all tokens.
inline constexpr int64_t kMostRepositoryBytes = int64_t{4} << 20;

// The places to search for the texts. Empty and missing paths are skipped.
struct RepositoryPlaces {
  std::string workspace;              // The root of the repository.
  std::vector<std::string> runfiles;  // Roots of the binary's runfiles.
};

// The places of this process. The workspace is BUILD_WORKSPACE_DIRECTORY, which
// `bazel run` sets. Runfiles are found through Bazel's variables or beside the
// program.
RepositoryPlaces PlacesOfProcess();

// Returns FindTextsBelow(workspace). Without a workspace, returns a file in the
// runfiles that contains the headers of the trainer's libraries. NotFound, with
// the remedy, if neither exists.
absl::StatusOr<std::vector<std::string>> FindRepositoryTexts(
    const RepositoryPlaces& places = PlacesOfProcess());

// The files *.md, then *.h, then *.cc below a directory, each sorted by path,
// up to the first that would exceed `most_bytes`. Skips hidden files, symbolic
// links, build outputs (bazel-*), and files that are empty, binary or
// unreadable. Looks at 100,000 names at most.
std::vector<std::string> FindTextsBelow(const std::string& directory,
                                        int64_t most_bytes);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_TRAINING_DATA_H_
