// Converts weights between checkpoints and Hugging Face models: ExportModel,
// ExportAdapter and ImportModel.
//
//   TESSERA_RETURN_IF_ERROR(ExportModel("run/checkpoints", "exported",
//                                       {.dtype = DType::kBF16}));
//   TESSERA_ASSIGN_OR_RETURN(const std::string path,
//                            ImportModel("models/smollm", "checkpoints", {}));
#ifndef TESSERA_TOOLS_CHECKPOINT_HUGGING_FACE_MODEL_H_
#define TESSERA_TOOLS_CHECKPOINT_HUGGING_FACE_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/train/settings/run_options.h"

namespace tessera::tools {

inline constexpr char kBestModel[] = "best";

// The files of an export's weights.
enum class WeightFiles {
  kSafetensors,  // As transformers reads them.
  kDcp,          // torch.distributed.checkpoint, under transformers' names.
  kTorchDist,    // Megatron-LM's --ckpt-format=torch_dist.
};

// "safetensors", "dcp" or "torch_dist"; InvalidArgument for anything else.
absl::StatusOr<WeightFiles> ParseWeightFiles(std::string_view text);

struct ExportOptions {
  WeightFiles files = WeightFiles::kSafetensors;
  DType dtype = DType::kF32;  // f32, bf16 or f16, rounded to nearest.
  int64_t max_shard_bytes = int64_t{5'000'000'000};
  // A directory with a tokenizer.json or tokenizer.model. Its files of the
  // tokenizer, of chat templates, of processors and of generation are copied.
  // Empty copies none.
  std::string tokenizer = "";
  // Another checkpoint, which is exported into the folder kBestModel of the
  // directory. Empty: none.
  std::string best = "";
  // The token with which this tokenizer ends a text. config.json gets it if the
  // run began without a config.json of its own.
  std::optional<int64_t> end_of_text = {};
};

// Exports a checkpoint, or the newest one in a directory, as config.json,
// weights under Hugging Face's Llama names and, if there are several
// safetensors files, their index. Files for Megatron-LM have the names of
// megatron_names.h, and a common.pt and metadata.json beside them. The other
// keys of config.json and the generation_config.json are those of the model
// that the run comes from. `directory` must be new or empty; missing parents
// are made. It is written as "directory.writing" and then renamed, so that it
// is complete or absent. Uses master weights if there are any. Holds a few
// million weights at a time in memory.
//
// InvalidArgument for invalid options; AlreadyExists if the directory is not
// empty; the system's error if it cannot be written; the errors of ModelReader.
// Nothing is left after an error.
absl::Status ExportModel(const std::string& checkpoint,
                         const std::string& directory,
                         const ExportOptions& options);

// Returns the error that an export to `directory` would return now:
// AlreadyExists if it is not new or empty, the system's error if it cannot be
// made.
absl::Status CheckExportTarget(const std::string& directory);

// Exports the LoRA adapters of a run in the format of Hugging Face's PEFT,
// adapter_config.json and adapter_model.safetensors, for the base model with
// the name or path `base`. Otherwise the same as ExportModel, but ignores
// max_shard_bytes and tokenizer. FailedPrecondition if the run has no adapters.
absl::Status ExportAdapter(const std::string& checkpoint,
                           const std::string& directory,
                           const std::string& base,
                           const ExportOptions& options);

struct ImportOptions {
  train::MeshSizes mesh = {};
  int zero = 3;
  // The type of the run: f32, bf16 or f16. Default: the type in config.json if
  // it is one of these, otherwise f32.
  std::optional<DType> dtype = {};
};

// Imports a model as a checkpoint at step 0, from which a run can resume, and
// returns its path. `model` is a directory that HuggingFaceWeights opens.
// Weights are rounded to the type of the run; 16-bit weights have master
// weights with the full precision of the files; moments are zero. Holds a few
// million weights at a time in memory.
//
// DataLoss if a file is damaged or a tensor's shape contradicts config.json,
// NotFound if one is missing, each with its name; Unimplemented for an
// unsupported model; the errors of WriteRun. Nothing is left after an error.
absl::StatusOr<std::string> ImportModel(const std::string& model,
                                        const std::string& directory,
                                        const ImportOptions& options);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_HUGGING_FACE_MODEL_H_
