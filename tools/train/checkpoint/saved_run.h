// The names of a run's tensors: what LlamaStage calls the parameters of
// llama_names.h.
//
//   RunTensorName(LlamaPart::kQkv, 3);  // "layers.3.attention.qkv.weight"
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_SAVED_RUN_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_SAVED_RUN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/checkpoint/state_format.h"

namespace tessera::train {

inline constexpr std::string_view kEmbeddingTensor = "embedding.weight";
inline constexpr std::string_view kHeadTensor = "head.output.weight";

// `layer` counts for the parts of layers alone. The shapes and the order of the
// rows are those of llama_names.h.
std::string RunTensorName(model_files::LlamaPart part, int64_t layer = -1);

// The name of the tensor that has these weights: of a tied head the embedding.
std::string_view SourceOfTied(const model_files::ModelConfig& config,
                              std::string_view name);

// SavedRun: the checkpoint of a run as whole tensors, wherever their elements
// are.
//
//   TESSERA_ASSIGN_OR_RETURN(auto saved, SavedRun::Open(path));
//   TESSERA_ASSIGN_OR_RETURN(const SavedTensor* tensor,
//                            saved->Get("layers.3.mlp.down.weight"));
//   TESSERA_ASSIGN_OR_RETURN(
//       const auto copies,
//       saved->CopiesOf(*tensor, StatePart::kMaster, held, begin, end));
//   TESSERA_RETURN_IF_ERROR(
//       saved->Read(*tensor, StatePart::kMaster, copies, array));
//
// Opening reads the manifest alone. Everything that is read is checked; what is
// wrong is DataLoss that names file, offset and parameter. One thread at a
// time.

// The keys of a part's metadata, beside those of RunIdentity.
inline constexpr std::string_view kTensorsKey = "tensors";  // FormatHeldTensors
inline constexpr std::string_view kStepsKey = "steps";  // The next one's number
inline constexpr std::string_view kMeshKey = "mesh";    // For people.

// A tensor, and the parts of the checkpoint that hold some of it.
struct SavedTensor {
  struct Holder {
    size_t part = 0;  // Of the manifest.
    zero3::ParameterId id = {};
    HeldTensor held = {};
  };

  std::string name = "";
  std::vector<int64_t> shape = {};
  DType dtype = DType::kF32;
  std::vector<Holder> holders = {};
};

class SavedRun {
 public:
  // The checkpoint at `path`, a directory with a manifest. Errors of
  // ReadManifest; InvalidArgument where it is no checkpoint of a training run;
  // DataLoss where its parts do not have each element of each tensor once.
  static absl::StatusOr<std::unique_ptr<SavedRun>> Open(std::string path);

  const std::string& path() const { return path_; }
  const zero3::CheckpointManifest& manifest() const { return manifest_; }
  const RunIdentity& identity() const { return identity_; }
  // Steps of the run, with those that were skipped for their gradients.
  int64_t steps() const { return steps_; }
  zero3::MomentKinds moments() const {
    return manifest_.parts[0].moment_kinds();
  }

  // By name. A tied head that is not there is the embedding.
  const std::map<std::string, SavedTensor>& tensors() const { return tensors_; }
  // DataLoss where there is none.
  absl::StatusOr<const SavedTensor*> Get(std::string_view name) const;

  // None where there is no such part, as of frozen tensors.
  std::optional<zero3::StateFormat> FormatOf(const SavedTensor& tensor,
                                             zero3::StatePart part) const;

  // Elements [begin, end) of what `target` holds, of one part of the state.
  // InvalidArgument where the whole shapes differ, or the blocks of moments
  // would be cut.
  absl::StatusOr<std::vector<TensorCopy>> CopiesOf(const SavedTensor& tensor,
                                                   zero3::StatePart part,
                                                   const HeldTensor& target,
                                                   int64_t begin,
                                                   int64_t end) const;

  // Reads copies, of CopiesOf, into the elements of their target. `to` holds
  // them, in FormatOf(tensor, part).
  absl::Status Read(const SavedTensor& tensor, zero3::StatePart part,
                    std::span<const TensorCopy> copies,
                    const zero3::StateArray& to);

 private:
  explicit SavedRun(std::string path) : path_(std::move(path)) {}

  absl::Status AddPart(size_t index);
  absl::Status AddHolder(SavedTensor::Holder holder);
  absl::Status CheckTensors() const;
  absl::StatusOr<zero3::CheckpointReader*> ReaderOf(size_t part);
  absl::Status ReadRows(zero3::CheckpointReader& reader, zero3::ParameterId id,
                        zero3::StatePart part, const TensorCopy& copy,
                        const zero3::StateArray& to);

  const std::string path_;
  zero3::CheckpointManifest manifest_;
  RunIdentity identity_;
  int64_t steps_ = 0;
  std::map<std::string, SavedTensor> tensors_;
  std::map<size_t, std::unique_ptr<zero3::CheckpointReader>> readers_;
  std::vector<std::byte> rows_;
};

// ResolveCheckpoint: which checkpoint a path means.
//
//   ResolveCheckpoint("run/checkpoints");                // the newest there
//   ResolveCheckpoint("run/checkpoints/step-00000020");  // itself

// A directory with a manifest.json is itself; of another one, the newest
// complete checkpoint. NotFound where there is none, with what was passed over.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path);

// ModelReader: the weights of a checkpoint as whole tensors, on one process.
//
//   TESSERA_ASSIGN_OR_RETURN(auto reader,
//   ModelReader::Open("run/checkpoints")); std::vector<float> rows(64 *
//   reader->config().hidden); TESSERA_RETURN_IF_ERROR(
//       reader->Read(LlamaPart::kQkv, /*layer=*/3, 0, 64, rows));

// One thread at a time.
class ModelReader {
 public:
  // A checkpoint, or the newest complete one of a directory of them. Errors of
  // ResolveCheckpoint and SavedRun::Open; DataLoss where a tensor of the model
  // is missing.
  static absl::StatusOr<std::unique_ptr<ModelReader>> Open(
      const std::string& path);

  const model_files::ModelConfig& config() const {
    return saved_->identity().model;
  }
  const SavedRun& saved() const { return *saved_; }
  // Of the values that the run computed with.
  DType dtype() const { return dtype_; }

  // Rows [row_begin, row_end) of a whole parameter (llama_names.h has their
  // order), row by row; a norm's rows are its elements. From master weights
  // where there are, else the values. Of tied embeddings the head is the
  // embedding. InvalidArgument, with nothing read, where there are no such
  // rows or `target` has another size; DataLoss where files are damaged.
  absl::Status Read(model_files::LlamaPart part, int64_t layer,
                    int64_t row_begin, int64_t row_end,
                    std::span<float> target);

 private:
  ModelReader(std::unique_ptr<SavedRun> saved, DType dtype)
      : saved_(std::move(saved)), dtype_(dtype) {}

  const std::unique_ptr<SavedRun> saved_;
  const DType dtype_;
  std::vector<std::byte> stored_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_SAVED_RUN_H_
