// GenerateText: continues a prompt with the model of a checkpoint.
//
//   tensor_parallel::CpuOps ops;
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string text,
//       GenerateText("run/checkpoints", tokenizer, ops, {.prompt = "The "}));
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

struct SampleOptions {
  std::string prompt = "The ";
  int64_t tokens = 200;      // At most; fewer if the model ends its text.
  double temperature = 0.8;  // 0: always the most likely token.
  uint64_t seed = 1;         // The same seed gives the same text.
};

// `checkpoint` is one, or a directory of them, of which the newest is used.
// Reads all weights into this process. Errors are those of ContinueText and of
// ModelReader::Open.
absl::StatusOr<std::string> GenerateText(const std::string& checkpoint,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

// Returns the prompt and its continuation through PrintableText. Computes in
// f32 in this process.
//
// The model sees as many tokens as it has positions: of a longer prompt the
// last ones; when they are used up, it restarts with their last half. An empty
// prompt starts after the token that ends a text.
//
// InvalidArgument for invalid options, if the tokenizer has more tokens than
// the model, and if the prompt is empty and no token ends a text; otherwise
// errors of the reader and of ChooseToken.
absl::StatusOr<std::string> ContinueText(WeightReader& reader,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

// InvalidArgument, with the option and the allowed values.
absl::Status CheckSampleOptions(const SampleOptions& options);

// The next token. At temperature 0 the first of the largest logits. Otherwise
// token i with a probability proportional to exp(logits[i] / temperature),
// selected by `uniform` in [0, 1). InvalidArgument if there are no logits or
// the temperature is negative or not finite; FailedPrecondition if a logit is
// not finite, for example after a divergence.
absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    double temperature, double uniform);

// Returns text that is safe for terminals: UTF-8 whose only control characters
// are line feeds and tabs. Other control characters and invalid bytes become
// "\x1b"; an incomplete character at the end is dropped.
std::string PrintableText(std::string_view text);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_
