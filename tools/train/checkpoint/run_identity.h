// The identity of a run: the settings that determine its losses on any mesh.
//
//   RunIdentity identity = {.model = config, .seed = 1, .batch = 16,
//                           .length = 128, .corpus = corpus->fingerprint(),
//                           .vocabulary = tokenizer->vocabulary_size()};
//   AddTo(identity, metadata);  // the metadata of a checkpoint
//   TESSERA_ASSIGN_OR_RETURN(const RunIdentity saved, IdentityFrom(metadata));
//   TESSERA_RETURN_IF_ERROR(CheckSameRun(saved, /*steps=*/20, identity));
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_IDENTITY_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::train {

// The adapters that are trained, as --lora_rank, --lora_alpha and
// --lora_targets describe them. If the rank is 0, all weights are trained.
struct LoraIdentity {
  int64_t rank = 0;
  double alpha = 16;
  std::string targets = "all";  // attention, mlp, all

  // "none", or "rank 8, alpha 16, all".
  std::string ToString() const;
  friend bool operator==(const LoraIdentity& a, const LoraIdentity& b) {
    return a.ToString() == b.ToString();
  }
};

struct RunIdentity {
  model_files::ModelConfig model = {};
  uint64_t seed = 0;
  int64_t batch = 0;  // Sequences per step, over all ranks.
  // "FIRST:STEPS" as in --batch_warmup; "": no warm-up.
  std::string batch_warmup = "";
  int64_t length = 0;      // Tokens per sequence.
  uint64_t corpus = 0;     // text::Corpus::fingerprint().
  int64_t vocabulary = 0;  // The tokenizer's.
  // Samples that are held out of training.
  int64_t validation_samples = 0;
  int64_t test_samples = 0;
  // The parameters to which weight decay applies, as in --decay: "matrices" or
  // "all".
  std::string decay = "matrices";
  // As in --optimizer: "adafactor", "adamw", "lion", "muon", "sgd" or
  // "shampoo".
  std::string optimizer = "adamw";
  int64_t shampoo_block = 0;  // 0 without shampoo.
  LoraIdentity lora = {};
  // The files that the model comes from. They do not change the losses, and
  // exports write them again.
  model_files::ModelSource source = {};

  friend bool operator==(const RunIdentity&, const RunIdentity&) = default;
};

// Sets the keys "model" (a config.json), "seed", "batch", "length", "corpus",
// "vocabulary", "decay", "optimizer" and, unless they are 0 or empty,
// "batch_warmup", "validation_samples", "test_samples", "shampoo_block",
// "source_config",
// "source_generation_config", "lora_rank", and with it "lora_alpha" and
// "lora_targets". InvalidArgument if the model is invalid.
absl::Status AddTo(const RunIdentity& identity,
                   zero3::CheckpointMetadata& metadata);

// Reads the identity from untrusted metadata. InvalidArgument, with the key, if
// one is missing or invalid. The defaults of runs of earlier versions apply: a
// missing "decay" is "all", and a missing "optimizer" is "adamw".
absl::StatusOr<RunIdentity> IdentityFrom(
    const zero3::CheckpointMetadata& metadata);

// The fields in which two models differ, with both values: "hidden is 64 there
// and 128 here, ..."; "" if a run computes the same with both.
std::string ModelDifferences(const model_files::ModelConfig& there,
                             const model_files::ModelConfig& here);

// Returns OK if a run `now` can continue a checkpoint of `saved` after `steps`
// steps. Otherwise InvalidArgument, with both values of the fields that differ.
// These fields are not compared, because they have no effect:
//
//   always        max_positions and initializer_range of the model, source
//   at step 0     seed, batch, its warm-up, length, corpus, vocabulary,
//                 samples, decay and optimizer, because no data has been used
//                 (imported checkpoints); and adapters, if the checkpoint has
//                 none
absl::Status CheckSameRun(const RunIdentity& saved, int64_t steps,
                          const RunIdentity& now);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_IDENTITY_H_
