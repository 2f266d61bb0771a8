// ExportModel: the weights of a checkpoint as transformers reads them.
//
//   TESSERA_RETURN_IF_ERROR(ExportModel("run/checkpoints", "exported",
//                                       {.dtype = DType::kBF16}));
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
  DType dtype = DType::kF32;  // f32 or bf16, rounded to nearest.
  int64_t max_shard_bytes = int64_t{5'000'000'000};
  // A directory with tokenizer.json, which is copied with what there is beside
  // it of a tokenizer. Empty: none.
  std::string tokenizer = "";
};

// Writes config.json, safetensors with Hugging Face's Llama names, and their
// index where there are several, from a checkpoint or the newest one of a
// directory of them. `directory` is new or empty: it appears as a whole under
// its name, and until then is called "directory.writing". From master weights
// where there are. Holds a few million weights at a time.
//
// InvalidArgument for options that cannot be; AlreadyExists where the directory
// has something; the system's codes where it cannot be written, and errors of
// ModelReader. Then nothing is left behind.
absl::Status ExportModel(const std::string& checkpoint,
                         const std::string& directory,
                         const ExportOptions& options);

// ImportModel: a checkpoint at step 0 of the weights of a Hugging Face model,
// which a run resumes from.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string path,
//                            ImportModel("models/smollm", "checkpoints", {}));

struct ImportOptions {
  train::MeshSizes mesh = {};
  int zero = 3;
  // What the run computes with: f32 or bf16; none: bf16 where config.json says
  // so, else f32.
  std::optional<DType> dtype = {};
};

// `model` is a directory with config.json and safetensors, as
// //tools/model_files reads them. Values are rounded to the type, 16-bit ones
// have master weights with all that the files have, moments are zeros. The
// checkpoint's path. Holds a few million weights at a time.
//
// DataLoss where a file is damaged or a tensor has another shape than
// config.json says, NotFound where one is missing, each by name; Unimplemented
// where the model is none of Tessera's; errors of WriteRun. Nothing is left
// behind then.
absl::StatusOr<std::string> ImportModel(const std::string& model,
                                        const std::string& directory,
                                        const ImportOptions& options);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_HUGGING_FACE_MODEL_H_
