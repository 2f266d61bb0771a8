// ImportModel: a checkpoint at step 0 of the weights of a Hugging Face model,
// which a run resumes from.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string path,
//                            ImportModel("models/smollm", "checkpoints", {}));
#ifndef TESSERA_TOOLS_CHECKPOINT_IMPORT_MODEL_H_
#define TESSERA_TOOLS_CHECKPOINT_IMPORT_MODEL_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/train/loop/run_options.h"

namespace tessera::tools {

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

#endif  // TESSERA_TOOLS_CHECKPOINT_IMPORT_MODEL_H_
