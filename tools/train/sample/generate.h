// GenerateText: continues a prompt with the model of a checkpoint or a Hugging
// Face directory. LossOfTokens: how well a model predicts a text.
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
  int64_t tokens = 200;      // At most; fewer if the model ends its text.
  double temperature = 0.8;  // 0: always the most likely token.
  int64_t top_k = 0;         // Only the k most likely tokens; 0: all of them.
  // Only the most likely tokens that together have this probability
  // (Holtzman et al., arXiv 1904.09751, section 3.1); 1: all of them.
  double top_p = 1;
  uint64_t seed = 1;  // The same seed gives the same text.
};

// The weights at `path`: a checkpoint of a run, a directory of checkpoints, of
// which the newest complete one is used, or a Hugging Face directory with
// config.json and safetensors. NotFound, with what is expected, if it is none
// of them; errors of ModelReader::Open and HuggingFaceWeights::Open.
absl::StatusOr<std::unique_ptr<WeightReader>> OpenWeights(
    const std::string& path);

// Continues the prompt with the model at `path`, as OpenWeights takes it. Reads
// all weights into this process. Errors are those of ContinueText and of
// OpenWeights.
absl::StatusOr<std::string> GenerateText(const std::string& path,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

struct Continuation {
  int64_t prompt_tokens = 0;
  std::vector<text::TokenId> tokens = {};  // After the prompt.
  bool ended = false;  // The model ended its text, by a token not in `tokens`.
};

// Continues the prompt. Computes in f32 in this process.
//
// The model sees as many tokens as it has positions: of a longer prompt the
// last ones; when they are used up, it restarts with their last half. An empty
// prompt starts after the token that ends a text.
//
// InvalidArgument for invalid options, if the tokenizer has more tokens than
// the model, and if the prompt is empty and no token ends a text; otherwise
// errors of the reader and of ChooseToken.
absl::StatusOr<Continuation> ContinueTokens(WeightReader& reader,
                                            const text::Tokenizer& tokenizer,
                                            tensor_parallel::Ops& ops,
                                            const SampleOptions& options);

// The prompt and its continuation through PrintableText.
absl::StatusOr<std::string> ContinueText(WeightReader& reader,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options);

// InvalidArgument, with the option and the allowed values.
absl::Status CheckSampleOptions(const SampleOptions& options);

// The next token, by the temperature, top_k and top_p of `options`. At
// temperature 0 the first of the largest logits. Otherwise token i has a
// probability proportional to exp(logits[i] / temperature) and is selected by
// `uniform` in [0, 1), after two restrictions in this order: to the top_k
// largest logits, and to the smallest number of the most likely of these whose
// sum of probabilities is at least top_p of theirs, which is never less than
// one. Of equal logits the lower token counts as more likely. InvalidArgument
// if there are no logits or the options are invalid; FailedPrecondition if a
// logit is not finite, for example after a divergence.
absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    const SampleOptions& options,
                                    double uniform);

// The loss of a model on a text.
struct TextLoss {
  int64_t tokens = 0;   // That were predicted: all but the first.
  int64_t windows = 0;  // Into which the text was cut.
  double loss = 0;      // The mean over the tokens of -log p, in nats.

  double perplexity() const { return std::exp(loss); }
};

// Cuts `tokens` into windows and predicts every token but the first once: a
// window starts without memory of the previous one, at its last token. So the
// first predictions of a window have little context; a larger window gives a
// lower loss. Computes in f32 in this process. InvalidArgument if there are
// fewer than two tokens, if one is not in the model's vocabulary, or if
// `window`, the most tokens that the model sees at a time, is outside 1 to the
// model's positions; FailedPrecondition if the loss is not finite; errors of
// the reader.
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
