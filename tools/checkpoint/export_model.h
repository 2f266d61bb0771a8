// ExportModel: the weights of a checkpoint as transformers reads them.
//
//   TESSERA_RETURN_IF_ERROR(ExportModel("run/checkpoints", "exported",
//                                       {.dtype = DType::kBF16}));
#ifndef TESSERA_TOOLS_CHECKPOINT_EXPORT_MODEL_H_
#define TESSERA_TOOLS_CHECKPOINT_EXPORT_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"

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

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_EXPORT_MODEL_H_
