// ContinueText: what a model writes behind a prompt.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string text,
//       ContinueText(reader, tokenizer, ops, {.prompt = "The ", .tokens =
//       99}));
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_CONTINUE_TEXT_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_CONTINUE_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/sample/weight_reader.h"

namespace tessera::train {

struct SampleOptions {
  std::string prompt = "The ";
  int64_t tokens = 200;      // At most; fewer where the model ends its text.
  double temperature = 0.8;  // 0: always the likeliest token.
  uint64_t seed = 1;         // The same one gives the same text.
};

// InvalidArgument, which names the option and what is allowed.
absl::Status CheckSampleOptions(const SampleOptions& options);

// The prompt and what follows it, made printable (printable_text.h). The model
// computes in f32, all of it in this process.
//
// It sees as many tokens as it has positions: of a longer prompt the last ones,
// and where these are used up, the last half of them again. An empty prompt
// begins a text, behind the token that ends one.
//
// InvalidArgument also where the tokenizer has more tokens than the model, or
// the prompt is empty and no token ends a text; else what the reader and
// ChooseToken refuse.
absl::StatusOr<std::string> ContinueText(WeightReader& reader,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_CONTINUE_TEXT_H_
