// ChooseToken: the next token, from what a model says of each.
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/sample/llama_decoder.h"

namespace tessera::train {

// At temperature 0 the first of the largest logits. Else token i with a
// probability proportional to exp(logits[i] / temperature), where `uniform`, in
// [0, 1), says which. InvalidArgument where there are no logits or the
// temperature is negative or not finite; FailedPrecondition where a logit is
// not a number or infinite, as of a model that has diverged.
absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    double temperature, double uniform);

// PrintableText: text that a model wrote, as a terminal may show it.

// UTF-8 whose only control characters are line ends and tabs. Other control
// characters, and bytes that are no character, become "\x1b"; the bytes of a
// character that the end cuts off are left out.
std::string PrintableText(std::string_view text);

// ContinueText: what a model writes behind a prompt.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string text,
//       ContinueText(reader, tokenizer, ops, {.prompt = "The ", .tokens =
//       99}));

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

// GenerateText: what the model of a checkpoint writes behind a prompt.
//
//   tensor_parallel::CpuOps ops;
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string text,
//       GenerateText("run/checkpoints", tokenizer, ops, {.prompt = "The "}));

// `checkpoint` is one, or a directory of them, whose newest is taken. Reads all
// weights into this process. As ContinueText; else what ModelReader::Open
// refuses.
absl::StatusOr<std::string> GenerateText(const std::string& checkpoint,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_
