#include "tools/train/sample/continue_text.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/random/philox.h"
#include "tools/model_files/model_config.h"
#include "tools/train/sample/choose_token.h"
#include "tools/train/sample/llama_decoder.h"
#include "tools/train/sample/llama_weights.h"
#include "tools/train/sample/printable_text.h"

namespace tessera::train {
namespace {

// Of the random numbers that choose tokens: "sample" in ASCII.
constexpr uint64_t kSampleStream = 0x73616d706c65;

// The tokens of a text, and a decoder that has seen the last of them.
class Writer {
 public:
  Writer(std::unique_ptr<LlamaDecoder> decoder, std::vector<int64_t> prompt)
      : decoder_(std::move(decoder)), tokens_(std::move(prompt)) {}

  const std::vector<int64_t>& tokens() const { return tokens_; }
  void Add(int64_t token) { tokens_.push_back(token); }

  // For the token behind the last one.
  absl::StatusOr<std::vector<double>> Logits() {
    auto fresh = std::span<const int64_t>(tokens_).subspan(read_);
    const auto room =
        static_cast<size_t>(decoder_->capacity() - decoder_->length());
    if (fresh.size() > room) fresh = StartAgain();
    read_ = tokens_.size();
    return decoder_->Append(fresh);
  }

 private:
  // Of a prompt that is too long, as many tokens as there is room for; else
  // half as many, so that room is left.
  std::span<const int64_t> StartAgain() {
    const auto capacity = static_cast<size_t>(decoder_->capacity());
    const size_t keep =
        read_ == 0 ? capacity : std::max<size_t>(capacity / 2, 1);
    decoder_->Clear();
    return std::span<const int64_t>(tokens_).last(keep);
  }

  std::unique_ptr<LlamaDecoder> decoder_;
  std::vector<int64_t> tokens_;
  size_t read_ = 0;  // By the decoder.
};

absl::StatusOr<std::vector<int64_t>> PromptOf(const text::Tokenizer& tokenizer,
                                              const std::string& prompt) {
  const std::vector<text::TokenId> ids = tokenizer.Encode(prompt);
  if (!ids.empty()) return std::vector<int64_t>(ids.begin(), ids.end());
  if (const auto end = tokenizer.end_of_text(); end.has_value()) {
    return std::vector<int64_t>{*end};
  }
  return absl::InvalidArgumentError(
      "an empty prompt, and the tokenizer has no token that ends a text; give "
      "a prompt such as \"The \"");
}

absl::Status CheckVocabulary(const text::Tokenizer& tokenizer,
                             const model_files::ModelConfig& model) {
  if (tokenizer.vocabulary_size() <= model.vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the tokenizer has ", tokenizer.vocabulary_size(), " tokens, the model ",
      model.vocabulary, "; give the tokenizer that it was trained with"));
}

// Room for all tokens but the last, whose successor nobody asks for.
int64_t CapacityFor(const model_files::ModelConfig& model, size_t prompt,
                    int64_t tokens) {
  return std::min(model.max_positions,
                  static_cast<int64_t>(prompt) + tokens - 1);
}

// Appends tokens until there are enough or one ends the text.
absl::Status Write(const text::Tokenizer& tokenizer,
                   const SampleOptions& options, Writer& writer) {
  const tensor_parallel::Philox random(
      {.seed = options.seed, .stream = kSampleStream});
  // The model may have spare tokens, which are no text.
  const auto known = static_cast<size_t>(tokenizer.vocabulary_size());
  for (int64_t i = 0; i < options.tokens; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<double> logits, writer.Logits());
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t token,
        ChooseToken(std::span(logits).first(known), options.temperature,
                    random.Uniform(static_cast<uint64_t>(i))));
    if (token == tokenizer.end_of_text()) break;
    writer.Add(token);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSampleOptions(const SampleOptions& options) {
  if (options.tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a sample of ", options.tokens, " tokens; give 0 or more"));
  }
  if (options.temperature >= 0 && std::isfinite(options.temperature)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a sample of temperature ", options.temperature,
                   "; it must be at least 0 and finite, such as 0.8"));
}

absl::StatusOr<std::string> ContinueText(WeightReader& reader,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckSampleOptions(options));
  if (options.tokens == 0) return PrintableText(options.prompt);
  TESSERA_RETURN_IF_ERROR(CheckVocabulary(tokenizer, reader.config()));
  TESSERA_ASSIGN_OR_RETURN(std::vector<int64_t> prompt,
                           PromptOf(tokenizer, options.prompt));
  TESSERA_ASSIGN_OR_RETURN(const LlamaWeights weights,
                           LlamaWeights::Read(reader, DType::kF32));
  TESSERA_ASSIGN_OR_RETURN(
      auto decoder,
      LlamaDecoder::Create(
          weights, ops,
          CapacityFor(reader.config(), prompt.size(), options.tokens)));
  const auto begin = static_cast<std::ptrdiff_t>(prompt.size());
  Writer writer(std::move(decoder), std::move(prompt));
  TESSERA_RETURN_IF_ERROR(Write(tokenizer, options, writer));
  const std::vector<text::TokenId> written(writer.tokens().begin() + begin,
                                           writer.tokens().end());
  std::string text = options.prompt;
  tokenizer.AppendText(written, text);
  return PrintableText(text);
}

}  // namespace tessera::train
