// OpenTrainingData: what --data, --tokenizer and --length mean.
//
//   TESSERA_ASSIGN_OR_RETURN(TrainingData data, OpenTrainingData(settings));
//   data.tokenizer->vocabulary_size();
//   data.samples->ReadTraining(index, tokens);
#ifndef TESSERA_TOOLS_TRAIN_LOOP_TRAINING_DATA_H_
#define TESSERA_TOOLS_TRAIN_LOOP_TRAINING_DATA_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Of what OpenTrainingData returns, nothing is missing. Const calls may be made
// by several threads at once.
struct TrainingData {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::Corpus> corpus;
  std::optional<text::Samples> samples;  // Shuffled by the seed.
};

// Paths are as UserPath takes them. Where no tokenizer is named: that of the
// model's directory, or bytes. Where no data is named: texts of the
// repository (repository_texts.h). The same on every rank that sees the same
// files. InvalidArgument, with the flag, where the tokenizer or the data cannot
// be read, or has too few tokens for one sequence.
absl::StatusOr<TrainingData> OpenTrainingData(const Settings& settings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_TRAINING_DATA_H_
