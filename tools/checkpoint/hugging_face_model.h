// ExportModel, ImportModel: weights between checkpoints and Hugging Face
// models.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/train/loop/run_options.h"

namespace tessera::tools {

struct ExportOptions {
  DType dtype = DType::kF32;  // f32, bf16 or f16, rounded to nearest.
  int64_t max_shard_bytes = int64_t{5'000'000'000};
  // A directory with a tokenizer.json or tokenizer.model, whose tokenizer files
  // are copied. Empty: none.
  std::string tokenizer = "";
};

// Writes config.json, safetensors with Hugging Face's Llama names, and their
// index if there are several, from a checkpoint or the newest one in a
// directory. `directory` is new or empty and appears as a whole; until then it
// is "directory.writing". Uses master weights if there are any. Holds a few
// million weights at a time.
//
// InvalidArgument for invalid options; AlreadyExists if the directory is not
// empty; the system's error if it cannot be written; the errors of ModelReader.
// Nothing is left after an error.
absl::Status ExportModel(const std::string& checkpoint,
                         const std::string& directory,
                         const ExportOptions& options);

// Writes the LoRA adapters of a run as Hugging Face's PEFT has them:
// adapter_config.json and adapter_model.safetensors, for the model with the
// name or path `base`. Otherwise as ExportModel, with max_shard_bytes and
// tokenizer unused. FailedPrecondition if the run has no adapters.
absl::Status ExportAdapter(const std::string& checkpoint,
                           const std::string& directory,
                           const std::string& base,
                           const ExportOptions& options);

struct ImportOptions {
  train::MeshSizes mesh = {};
  int zero = 3;
  // The type of the run: f32, bf16 or f16. Default: that of config.json if it
  // is one of these, else f32.
  std::optional<DType> dtype = {};
};

// Writes a checkpoint at step 0, from which a run resumes, and returns its
// path. `model` is a directory with config.json and safetensors. Weights are
// rounded to the type; 16-bit ones have master weights with the full precision
// of the files; moments are zero. Holds a few million weights at a time.
//
// DataLoss if a file is damaged or a tensor's shape contradicts config.json,
// NotFound if one is missing, each with its name; Unimplemented for an
// unsupported model; the errors of WriteRun. Nothing is left after an error.
absl::StatusOr<std::string> ImportModel(const std::string& model,
                                        const std::string& directory,
                                        const ImportOptions& options);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_HUGGING_FACE_MODEL_H_
