// Generates text with the model of a checkpoint or a Hugging Face directory,
// and measures how well a model predicts a text.
//
//   tensor_parallel::CpuOps ops;
//   TESSERA_ASSIGN_OR_RETURN(
//       std::string text,
//       GenerateText("run/checkpoints", tokenizer, ops, {.prompt = "The "}));
//
//   TESSERA_ASSIGN_OR_RETURN(auto weights, OpenWeights("models/smollm"));
//   TESSERA_ASSIGN_OR_RETURN(const TextLoss loss,
//                            LossOfTokens(*weights, tokens, 2048, ops));
//   loss.perplexity();
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/sample/llama_decoder.h"

namespace tessera::train {

struct SampleOptions {
  std::string prompt = "The ";
  int64_t tokens = 200;      // Maximum; fewer if the model ends its text.
  double temperature = 0.8;  // 0: always the most likely token.
  int64_t top_k = 0;         // Only the k most likely tokens; 0: no limit.
  // Only the most likely tokens that together have this probability
  // (Holtzman et al., arXiv 1904.09751, section 3.1); 1: all tokens.
  double top_p = 1;
  uint64_t seed = 1;  // The same seed gives the same text.
};

// Opens the weights at `path`: a checkpoint of a run, a directory of
// checkpoints (the newest complete one is used), or a Hugging Face directory
// with config.json and safetensors. NotFound, with a description of these, for
// any other path; errors of ModelReader::Open and HuggingFaceWeights::Open.
absl::StatusOr<std::unique_ptr<WeightReader>> OpenWeights(
    const std::string& path);

// Continues the prompt with the model at `path` (see OpenWeights). Reads all
// weights into this process. Returns errors of OpenWeights and ContinueText.
absl::StatusOr<std::string> GenerateText(const std::string& path,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

struct Continuation {
  int64_t prompt_tokens = 0;
  std::vector<text::TokenId> tokens = {};  // After the prompt.
  bool ended = false;  // The model ended its text; the end is not in `tokens`.
};

// Continues the prompt, after the tokens that the tokenizer puts before a text
// (Tokenizer::begin_of_text), until one of WeightReader::EndsOfText or the
// tokenizer's end of text. Computes in f32 in this process.
//
// The model sees at most as many tokens as it has positions: the last ones of a
// longer prompt. When all positions are used, it restarts with the last half of
// the tokens. An empty prompt without a begin starts after the token that ends
// a text.
//
// InvalidArgument for invalid options, if the tokenizer has more tokens than
// the model, and if the prompt is empty and no token ends a text. Also returns
// errors of the reader and of ChooseToken.
absl::StatusOr<Continuation> ContinueTokens(WeightReader& reader,
                                            const text::Tokenizer& tokenizer,
                                            tensor_parallel::Ops& ops,
                                            const SampleOptions& options);

// Returns the prompt and its continuation, filtered by PrintableText.
absl::StatusOr<std::string> ContinueText(WeightReader& reader,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

// InvalidArgument, with the option and the allowed values, for invalid options.
absl::Status CheckSampleOptions(const SampleOptions& options);

// Selects the next token by the temperature, top_k and top_p of `options`. At
// temperature 0 it is the first token with the largest logit. Otherwise token i
// has a probability proportional to exp(logits[i] / temperature), and `uniform`
// in [0, 1) selects one of the candidates. These are first restricted to the
// top_k largest logits, then to the fewest most likely of them, at least one,
// that have at least a share top_p of their total probability. Of equal logits
// the lower token counts as more likely. InvalidArgument if there are no logits
// or the options are invalid; FailedPrecondition if a logit is infinite or NaN,
// for example after a divergence.
absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    const SampleOptions& options,
                                    double uniform);

// The loss of a model on a text.
struct TextLoss {
  int64_t tokens = 0;   // Predicted tokens: all but the first.
  int64_t windows = 0;  // The number of windows of the text.
  double loss = 0;      // The mean over the tokens of -log p, in nats.

  double perplexity() const { return std::exp(loss); }
};

// Splits `tokens` into windows and predicts every token except the first once.
// A window starts at the last token of the previous one, without its context.
// The first predictions of a window therefore have little context, and a larger
// window gives a lower loss. Computes in f32 in this process. InvalidArgument
// if there are fewer than two tokens, a token is not in the model's vocabulary,
// or `window`, the maximum number of tokens that the model sees at a time, is
// not in 1 to the model's positions. FailedPrecondition if the loss is infinite
// or NaN. Also returns errors of the reader.
absl::StatusOr<TextLoss> LossOfTokens(WeightReader& reader,
                                      std::span<const int64_t> tokens,
                                      int64_t window,
                                      tensor_parallel::Ops& ops);

// Returns text that is safe for terminals: UTF-8 whose only control characters
// are line feeds and tabs. Other control characters and invalid bytes become
// "\x1b"; an incomplete character at the end is dropped.
std::string PrintableText(std::string_view text);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_GENERATE_H_
