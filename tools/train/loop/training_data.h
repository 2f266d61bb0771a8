// OpenTrainingData: opens the tokenizer, corpus and samples of --tokenizer,
// --data and --length.
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
#include "tools/model_files/model_config.h"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// OpenTrainingData sets all members. Const calls are thread-safe.
struct TrainingData {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  // Shuffled by the seed; the last --validation_fraction and
  // --test_fraction held out.
  std::optional<text::Samples> samples;
};

// A path of --data may have a weight, "books:0.7"; then all have one, and they
// add up to 1: each is a corpus of a blend (text::Blend). Without weights all
// paths are one corpus. Paths are relative to UserPath. Without --tokenizer:
// that of the model's directory, or bytes. Without --data: FindRepositoryTexts.
// The tokens of long texts are kept in --token_cache (text::TokenCache).
// Returns the same on every rank that sees the same files. InvalidArgument,
// with the flag, if the tokenizer or the data cannot be read, or has too few
// tokens for one sequence, or too few validation samples for --eval_batches.
absl::StatusOr<TrainingData> OpenTrainingData(const Settings& settings);

// The tokenizer of --tokenizer; without one that of the model's directory, or
// bytes. InvalidArgument, with the flag, if it cannot be read.
absl::StatusOr<std::shared_ptr<const text::Tokenizer>> OpenTokenizer(
    const Settings& settings);

// The identity of a run: checkpoints record it and `--resume` compares it.
RunIdentity IdentityOf(const Settings& settings,
                       const model_files::ModelConfig& model,
                       const TrainingData& data);

// The default data: the sources and documents of this repository.

// Enough for thousands of steps of the smallest model. Every rank holds all
// tokens, so it is kept small.
inline constexpr int64_t kMostRepositoryBytes = int64_t{4} << 20;

// The places to search for the texts. Empty and missing paths are skipped.
struct RepositoryPlaces {
  std::string workspace;              // The root of the repository.
  std::vector<std::string> runfiles;  // Roots of the binary's runfiles.
};

// The workspace is BUILD_WORKSPACE_DIRECTORY, which `bazel run` sets. Runfiles
// are in Bazel's variables, or beside the program.
RepositoryPlaces PlacesOfProcess();

// FindTextsBelow the workspace; without one, a file in the runfiles with the
// headers of the trainer's libraries. NotFound, with the remedy, if neither
// exists.
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
