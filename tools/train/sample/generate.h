// GenerateText: what the model of a checkpoint writes behind a prompt.
//
//   tensor_parallel::CpuOps ops;
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string text,
//       GenerateText("run/checkpoints", tokenizer, ops, {.prompt = "The "}));
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/sample/continue_text.h"

namespace tessera::train {

// `checkpoint` is one, or a directory of them, whose newest is taken. Reads all
// weights into this process. As ContinueText; else what ModelReader::Open
// refuses.
absl::StatusOr<std::string> GenerateText(const std::string& checkpoint,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_
