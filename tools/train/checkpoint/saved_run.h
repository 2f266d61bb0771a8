// Reads the checkpoint of a run as whole tensors, or as the weights of its
// model in one process.
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
//   TESSERA_ASSIGN_OR_RETURN(auto reader,
//                            ModelReader::Open("run/checkpoints"));
//   std::vector<float> rows(64 * reader->config().hidden);
//   TESSERA_RETURN_IF_ERROR(
//       reader->Read(LlamaPart::kQkv, /*layer=*/3, 0, 64, rows));
//
// Opening a checkpoint reads only the manifest. All data is verified when it is
// read: DataLoss names the file, the offset and the parameter. One thread at a
// time.
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/step/run_progress.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/layout/state_format.h"

namespace tessera::train {

// Names, shapes and the order of rows are those of llama_names.h.
inline constexpr std::string_view kEmbeddingTensor = "embedding.weight";
inline constexpr std::string_view kHeadTensor = "head.output.weight";

// The names of the tensors that a run trains, all or only adapters; a tied head
// is part of the embedding.
std::vector<std::string> TrainedTensors(const model_files::ModelConfig& model,
                                        const LoraIdentity& lora);

// The name of the tensor that stores the weights `name`: the embedding for a
// tied head, otherwise `name`.
std::string_view SourceOfTied(const model_files::ModelConfig& config,
                              std::string_view name);

// The keys of a part's metadata besides those of RunIdentity and RunProgress.
inline constexpr std::string_view kTensorsKey = "tensors";  // FormatHeldTensors
inline constexpr std::string_view kMeshKey = "mesh";        // Informative.
// The validation loss at the checkpoint's step, if it was measured.
inline constexpr std::string_view kEvalLossKey = "eval_loss";
// The scales of fp8 of the part's layers (fp8_scales.h). Tensor ranks have the
// same ones, of which the first has the key.
inline constexpr std::string_view kFp8ScalesKey = "fp8_scales";

// A tensor, and the parts of the checkpoint that hold it.
struct SavedTensor {
  struct Holder {
    size_t part = 0;  // Index in the manifest.
    zero3::ParameterId id = {};
    HeldTensor held = {};
  };

  std::string name = "";
  std::vector<int64_t> shape = {};
  DType dtype = DType::kF32;
  std::vector<Holder> holders = {};
};

// A checkpoint of a run as whole tensors.
class SavedRun {
 public:
  // Opens the checkpoint at `path`, a directory with a manifest. Returns errors
  // of ReadManifest; InvalidArgument if it is not a checkpoint of a training
  // run; DataLoss if its parts do not contain each element of each tensor
  // exactly once.
  static absl::StatusOr<std::unique_ptr<SavedRun>> Open(std::string path);

  const std::string& path() const { return path_; }
  const zero3::CheckpointManifest& manifest() const { return manifest_; }
  const RunIdentity& identity() const { return identity_; }
  const RunProgress& progress() const { return progress_; }
  // The number of steps, including those skipped for infinite or NaN gradients.
  int64_t steps() const { return progress_.steps; }
  zero3::MomentKinds moments() const {
    return manifest_.parts[0].moment_kinds();
  }
  // All moments are zero: the run has taken no step, as after an import.
  bool has_zero_moments() const { return manifest_.step == 0; }
  // The scales of fp8 of all layers, as the parts have them; "": none.
  const std::string& fp8_scales() const { return fp8_scales_; }
  // The type in which the run computed. DataLoss if there is no embedding.
  absl::StatusOr<DType> dtype() const;

  // The tensors by name. A tied head that is not stored refers to the
  // embedding.
  const std::map<std::string, SavedTensor>& tensors() const { return tensors_; }
  // DataLoss if there is no such tensor.
  absl::StatusOr<const SavedTensor*> Get(std::string_view name) const;

  // Returns nullopt if the tensor has no such part, for example if it is
  // frozen.
  std::optional<zero3::StateFormat> FormatOf(const SavedTensor& tensor,
                                             zero3::StatePart part) const;

  // Returns the copies that set elements [begin, end) of `target`, for one part
  // of the state. InvalidArgument if the whole shapes differ or a block of
  // moments would be split.
  absl::StatusOr<std::vector<TensorCopy>> CopiesOf(const SavedTensor& tensor,
                                                   zero3::StatePart part,
                                                   const HeldTensor& target,
                                                   int64_t begin,
                                                   int64_t end) const;

  // Reads the copies of CopiesOf into `to`, which holds the target's elements
  // in FormatOf(tensor, part).
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
  RunProgress progress_;
  std::string fp8_scales_;
  std::map<std::string, SavedTensor> tensors_;
  std::map<size_t, std::unique_ptr<zero3::CheckpointReader>> readers_;
  std::vector<std::byte> rows_;
};

// Returns `path` if it has a manifest.json; otherwise the newest complete
// checkpoint in it, or in the "checkpoints" of a run's directory. NotFound,
// with the entries that were skipped, if there is none.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path);

// The factors of a weight's LoRA adapter (tensor_parallel/layers/lora.h).
struct SavedAdapter {
  // The ends of the projections among the rows of the weight: of each expert.
  std::vector<int64_t> ends = {};
  std::vector<float> a = {};  // [projections * rank, in]
  std::vector<float> b = {};  // [out, rank]
};

// The weights of a run's model, read from a checkpoint in one process.
class ModelReader {
 public:
  // Opens a checkpoint, or the newest complete one in a directory. Returns
  // errors of ResolveCheckpoint and SavedRun::Open; DataLoss if a tensor of the
  // model is missing.
  static absl::StatusOr<std::unique_ptr<ModelReader>> Open(
      const std::string& path);

  const model_files::ModelConfig& config() const {
    return saved_->identity().model;
  }
  const SavedRun& saved() const { return *saved_; }
  // The type in which the run computed.
  DType dtype() const { return dtype_; }

  // Reads rows [row_begin, row_end) of a whole parameter in the order of
  // llama_names.h; a norm's rows are its elements. Reads master weights if they
  // exist, otherwise the values. The head of tied embeddings is the embedding.
  // LoRA adapters are added to their weights, which gives the model of the run.
  // InvalidArgument, without reading, if the rows do not exist or `target` has
  // another size; DataLoss if files are damaged.
  absl::Status Read(model_files::LlamaPart part, int64_t layer,
                    int64_t row_begin, int64_t row_end,
                    std::span<float> target);

  // Reads the adapter of a weight; nullopt if it has none. DataLoss if its
  // shape does not match the model and the run's LoRA rank, or files are
  // damaged.
  absl::StatusOr<std::optional<SavedAdapter>> ReadAdapter(
      model_files::LlamaPart part, int64_t layer);

 private:
  ModelReader(std::unique_ptr<SavedRun> saved, DType dtype)
      : saved_(std::move(saved)), dtype_(dtype) {}

  absl::Status ReadRows(const SavedTensor& tensor, int64_t row_begin,
                        int64_t row_end, std::span<float> target);
  absl::Status AddAdapter(model_files::LlamaPart part, int64_t layer,
                          int64_t row_begin, int64_t row_end,
                          std::span<float> target);

  const std::unique_ptr<SavedRun> saved_;
  const DType dtype_;
  std::vector<std::byte> stored_;
  // The last one that was added: a weight is read in many ranges of rows.
  std::optional<std::pair<model_files::LlamaPart, int64_t>> adapter_of_;
  std::optional<SavedAdapter> adapter_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_SAVED_RUN_H_
