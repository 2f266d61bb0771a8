// RunIdentity: what the losses of a run follow from, whatever its mesh.
//
//   RunIdentity identity = {.model = config, .seed = 1, .batch = 16,
//                           .length = 128, .corpus = corpus->fingerprint(),
//                           .vocabulary = tokenizer->vocabulary_size()};
//   AddTo(identity, metadata);                       // of a checkpoint
//   TESSERA_ASSIGN_OR_RETURN(const RunIdentity saved, IdentityFrom(metadata));
//   TESSERA_RETURN_IF_ERROR(CheckSameRun(saved, /*steps=*/20, identity));
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_IDENTITY_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_IDENTITY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::train {

struct RunIdentity {
  model_files::ModelConfig model = {};
  uint64_t seed = 0;
  int64_t batch = 0;       // Sequences of a step, over all ranks.
  int64_t length = 0;      // Tokens of a sequence.
  uint64_t corpus = 0;     // text::Corpus::fingerprint().
  int64_t vocabulary = 0;  // Of the tokenizer.

  friend bool operator==(const RunIdentity&, const RunIdentity&) = default;
};

// Under the keys "model" (a config.json), "seed", "batch", "length", "corpus"
// and "vocabulary". InvalidArgument where the model is not valid.
absl::Status AddTo(const RunIdentity& identity,
                   zero3::CheckpointMetadata& metadata);

// Untrusted. InvalidArgument that names the key where one is missing or wrong.
absl::StatusOr<RunIdentity> IdentityFrom(
    const zero3::CheckpointMetadata& metadata);

// OK where a run that is `now` can go on behind a checkpoint of `saved`, taken
// after `steps` steps. InvalidArgument names the fields that differ, with both
// values. Harmless, so not compared:
//
//   always        max_positions and initializer_range of the model
//   at step 0     seed, batch, length, corpus and vocabulary: no data has been
//                 used, as in what was imported
absl::Status CheckSameRun(const RunIdentity& saved, int64_t steps,
                          const RunIdentity& now);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_IDENTITY_H_
