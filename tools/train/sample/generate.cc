#include "tools/train/sample/generate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tensor_parallel/random/philox.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/hugging_face_weights.h"
#include "tools/model_files/model_config.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/sample/llama_decoder.h"

namespace tessera::train {

namespace {

absl::Status CheckLogits(std::span<const double> logits) {
  if (logits.empty()) {
    return absl::InvalidArgumentError("no logits to choose a token from");
  }
  const auto bad =
      absl::c_find_if(logits, [](double x) { return !std::isfinite(x); });
  if (bad == logits.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the model's logit of token ", bad - logits.begin(), " is ",
                   *bad, ": its weights have diverged"));
}

// Sets the weights of tokens that top_k and top_p exclude to 0.
void Restrict(const SampleOptions& options, std::vector<double>& weights) {
  const size_t all = weights.size();
  size_t kept = all;
  if (options.top_k > 0) {
    kept = std::min(kept, static_cast<size_t>(options.top_k));
  }
  if (kept == all && options.top_p == 1) return;
  std::vector<size_t> order(all);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(kept);
  std::partial_sort(
      order.begin(), middle, order.end(), [&](size_t a, size_t b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
      });
  order.resize(kept);
  double sum = 0;
  for (const size_t token : order) sum += weights[token];
  std::vector<double> chosen(all);
  double so_far = 0;
  for (const size_t token : order) {
    chosen[token] = weights[token];
    so_far += weights[token];
    if (so_far >= options.top_p * sum) break;
  }
  weights = std::move(chosen);
}

enum class Form { kWhole, kCutOff, kMalformed };

struct Utf8Bytes {
  Form form = Form::kMalformed;
  size_t length = 1;  // The length of the complete character.
};

// The bytes that may follow a first byte (The Unicode Standard, table 3-7).
struct Follow {
  size_t length = 0;           // Includes the first byte; 0: invalid.
  unsigned char least = 0x80;  // The minimum of the second byte.
  unsigned char most = 0xBF;
};

Follow FollowOf(unsigned char first) {
  if (first < 0x80) return {.length = 1};
  if (first < 0xC2) return {};
  if (first < 0xE0) return {.length = 2};
  if (first == 0xE0) return {.length = 3, .least = 0xA0};
  if (first == 0xED) return {.length = 3, .most = 0x9F};
  if (first < 0xF0) return {.length = 3};
  if (first == 0xF0) return {.length = 4, .least = 0x90};
  if (first < 0xF4) return {.length = 4};
  if (first == 0xF4) return {.length = 4, .most = 0x8F};
  return {};
}

// The first character of `text`, which is not empty.
Utf8Bytes FirstCharacter(std::string_view text) {
  const Follow follow = FollowOf(static_cast<unsigned char>(text[0]));
  if (follow.length == 0) return {};
  for (size_t i = 1; i < follow.length; ++i) {
    if (i == text.size()) return {.form = Form::kCutOff};
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool fits = i == 1 ? follow.least <= byte && byte <= follow.most
                             : 0x80 <= byte && byte <= 0xBF;
    if (!fits) return {};
  }
  return {.form = Form::kWhole, .length = follow.length};
}

// True for C0 except line feeds and tabs, DEL, and C1 (U+0080 to U+009F).
bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character == "\n" || character == "\t") return false;
  return first < 0x20 || first == 0x7F ||
         (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
}

// The random stream for choosing tokens: "sample" in ASCII.
constexpr uint64_t kSampleStream = 0x73616d706c65;

// The tokens of a text, and a decoder that has read the most recent ones.
class Writer {
 public:
  Writer(std::unique_ptr<LlamaDecoder> decoder, std::vector<int64_t> prompt)
      : decoder_(std::move(decoder)), tokens_(std::move(prompt)) {}

  const std::vector<int64_t>& tokens() const { return tokens_; }
  void Add(int64_t token) { tokens_.push_back(token); }

  // The logits of the next token.
  absl::StatusOr<std::vector<double>> Logits() {
    auto fresh = std::span<const int64_t>(tokens_).subspan(read_);
    const auto room =
        static_cast<size_t>(decoder_->capacity() - decoder_->length());
    if (fresh.size() > room) fresh = StartAgain();
    read_ = tokens_.size();
    return decoder_->Append(fresh);
  }

 private:
  // Keeps as many tokens of a long prompt as fit. Later keeps half as many, to
  // make room for new tokens.
  std::span<const int64_t> StartAgain() {
    const auto capacity = static_cast<size_t>(decoder_->capacity());
    const size_t keep =
        read_ == 0 ? capacity : std::max<size_t>(capacity / 2, 1);
    decoder_->Clear();
    return std::span<const int64_t>(tokens_).last(keep);
  }

  std::unique_ptr<LlamaDecoder> decoder_;
  std::vector<int64_t> tokens_;
  size_t read_ = 0;  // Tokens that the decoder has read.
};

absl::StatusOr<std::vector<int64_t>> PromptOf(const text::Tokenizer& tokenizer,
                                              const std::string& prompt) {
  std::vector<text::TokenId> ids =
      tokenizer.Encode(prompt, tokenizer.SpecialTokensOfPairs());
  // A chat template may have begun the text already.
  const std::vector<text::TokenId>& begin = tokenizer.begin_of_text();
  if (!std::ranges::equal(
          std::span(ids).first(std::min(ids.size(), begin.size())), begin)) {
    ids.insert(ids.begin(), begin.begin(), begin.end());
  }
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

// The capacity for all tokens except the last one, which is not read.
int64_t CapacityFor(const model_files::ModelConfig& model, size_t prompt,
                    int64_t tokens) {
  return std::min(model.max_positions,
                  static_cast<int64_t>(prompt) + tokens - 1);
}

// Appends tokens until there are enough or one of `ends` is chosen.
absl::Status Write(const text::Tokenizer& tokenizer,
                   const SampleOptions& options, std::span<const int64_t> ends,
                   Writer& writer, Continuation& continuation) {
  const tensor_parallel::Philox random(
      {.seed = options.seed, .stream = kSampleStream});
  // The model may have padding tokens, which are not text.
  const auto known = static_cast<size_t>(tokenizer.vocabulary_size());
  for (int64_t i = 0; i < options.tokens; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<double> logits, writer.Logits());
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t token,
        ChooseToken(std::span(logits).first(known), options,
                    random.Uniform(static_cast<uint64_t>(i))));
    if (absl::c_linear_search(ends, token)) {
      continuation.ended = true;
      break;
    }
    writer.Add(token);
    continuation.tokens.push_back(static_cast<text::TokenId>(token));
  }
  return absl::OkStatus();
}

class CheckpointWeights final : public WeightReader {
 public:
  explicit CheckpointWeights(std::unique_ptr<ModelReader> reader)
      : reader_(std::move(reader)) {}

  const model_files::ModelConfig& config() const override {
    return reader_->config();
  }
  absl::Status Read(model_files::LlamaPart part, int64_t layer,
                    int64_t row_begin, int64_t row_end,
                    std::span<float> target) override {
    return reader_->Read(part, layer, row_begin, row_end, target);
  }
  absl::StatusOr<std::vector<int64_t>> EndsOfText() const override {
    return model_files::EndsOfText(reader_->saved().identity().source);
  }

 private:
  std::unique_ptr<ModelReader> reader_;
};

class DirectoryWeights final : public WeightReader {
 public:
  explicit DirectoryWeights(model_files::HuggingFaceWeights weights)
      : weights_(std::move(weights)) {}

  const model_files::ModelConfig& config() const override {
    return weights_.config().model;
  }
  absl::Status Read(model_files::LlamaPart part, int64_t layer,
                    int64_t row_begin, int64_t row_end,
                    std::span<float> target) override {
    return weights_.Read(part, layer, row_begin, row_end, target);
  }
  absl::StatusOr<std::vector<int64_t>> EndsOfText() const override {
    return model_files::EndsOfText(weights_.source());
  }

 private:
  model_files::HuggingFaceWeights weights_;
};

}  // namespace

absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    const SampleOptions& options,
                                    double uniform) {
  TESSERA_RETURN_IF_ERROR(CheckSampleOptions(options));
  TESSERA_RETURN_IF_ERROR(CheckLogits(logits));
  const auto largest = absl::c_max_element(logits);
  if (options.temperature == 0) return largest - logits.begin();
  std::vector<double> sums;
  sums.reserve(logits.size());
  for (const double logit : logits) {
    sums.push_back(std::exp((logit - *largest) / options.temperature));
  }
  Restrict(options, sums);
  double sum = 0;
  for (double& weight : sums) weight = sum += weight;
  // The first token whose cumulative sum exceeds the value, which never has
  // probability 0.
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), uniform * sum);
  if (chosen == sums.end()) return largest - logits.begin();
  return chosen - sums.begin();
}

std::string PrintableText(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Utf8Bytes bytes = FirstCharacter(text);
    if (bytes.form == Form::kCutOff) break;
    const std::string_view character = text.substr(0, bytes.length);
    if (bytes.form == Form::kWhole && !IsControl(character)) {
      result += character;
    } else {
      for (const char c : character) {
        absl::StrAppendFormat(&result, "\\x%02x",
                              static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(character.size());
  }
  return result;
}

absl::Status CheckSampleOptions(const SampleOptions& options) {
  if (options.tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a sample of ", options.tokens, " tokens; give 0 or more"));
  }
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a sample from the ", options.top_k,
        " most likely tokens; give 1 or more, such as 50, or 0 for all"));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sample from a probability of ", options.top_p,
                     "; it must be above 0 and at most 1, such as 0.9"));
  }
  if (options.temperature >= 0 && std::isfinite(options.temperature)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a sample of temperature ", options.temperature,
                   "; it must be at least 0 and finite, such as 0.8"));
}

absl::StatusOr<Continuation> ContinueTokens(WeightReader& reader,
                                            const text::Tokenizer& tokenizer,
                                            tensor_parallel::Ops& ops,
                                            const SampleOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckSampleOptions(options));
  Continuation continuation;
  if (options.tokens == 0) return continuation;
  TESSERA_RETURN_IF_ERROR(CheckVocabulary(tokenizer, reader.config()));
  TESSERA_ASSIGN_OR_RETURN(std::vector<int64_t> prompt,
                           PromptOf(tokenizer, options.prompt));
  continuation.prompt_tokens = static_cast<int64_t>(prompt.size());
  TESSERA_ASSIGN_OR_RETURN(LlamaWeights weights,
                           LlamaWeights::Read(reader, DType::kF32));
  TESSERA_ASSIGN_OR_RETURN(
      auto decoder,
      LlamaDecoder::Create(
          weights, ops,
          CapacityFor(reader.config(), prompt.size(), options.tokens)));
  TESSERA_ASSIGN_OR_RETURN(std::vector<int64_t> ends, reader.EndsOfText());
  if (const auto end = tokenizer.end_of_text()) ends.push_back(*end);
  Writer writer(std::move(decoder), std::move(prompt));
  TESSERA_RETURN_IF_ERROR(
      Write(tokenizer, options, ends, writer, continuation));
  return continuation;
}

absl::StatusOr<std::string> ContinueText(WeightReader& reader,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Continuation continuation,
                           ContinueTokens(reader, tokenizer, ops, options));
  std::string text = options.prompt;
  tokenizer.AppendText(continuation.tokens, text);
  return PrintableText(text);
}

absl::StatusOr<TextLoss> LossOfTokens(WeightReader& reader,
                                      std::span<const int64_t> tokens,
                                      int64_t window,
                                      tensor_parallel::Ops& ops) {
  const int64_t positions = reader.config().max_positions;
  if (window < 1 || window > positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", window, " tokens; the model has ",
                     positions, " positions: give 1 to ", positions));
  }
  if (tokens.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", tokens.size(),
                     " tokens; a loss needs at least 2, since the first one is "
                     "not predicted"));
  }
  TESSERA_ASSIGN_OR_RETURN(LlamaWeights weights,
                           LlamaWeights::Read(reader, DType::kF32));
  TextLoss result = {.tokens = static_cast<int64_t>(tokens.size()) - 1};
  const int64_t most = std::min(window, result.tokens);
  TESSERA_ASSIGN_OR_RETURN(auto decoder,
                           LlamaDecoder::Create(weights, ops, most));
  double sum = 0;
  for (int64_t begin = 0; begin < result.tokens; begin += most) {
    const auto count =
        static_cast<size_t>(std::min(most, result.tokens - begin));
    const auto first = static_cast<size_t>(begin);
    decoder->Clear();
    TESSERA_ASSIGN_OR_RETURN(const std::vector<double> scores,
                             decoder->Score(tokens.subspan(first, count),
                                            tokens.subspan(first + 1, count)));
    for (const double score : scores) sum -= score;
    ++result.windows;
  }
  result.loss = sum / static_cast<double>(result.tokens);
  if (std::isfinite(result.loss)) return result;
  return absl::FailedPreconditionError(
      absl::StrCat("the loss of the text is ", result.loss,
                   ": the model's weights have diverged"));
}

absl::StatusOr<std::unique_ptr<WeightReader>> OpenWeights(
    const std::string& path) {
  if (model_files::IsHuggingFaceModel(path)) {
    TESSERA_ASSIGN_OR_RETURN(model_files::HuggingFaceWeights weights,
                             model_files::HuggingFaceWeights::Open(path));
    return std::make_unique<DirectoryWeights>(std::move(weights));
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ModelReader> reader,
                           ModelReader::Open(path));
  return std::make_unique<CheckpointWeights>(std::move(reader));
}

absl::StatusOr<std::string> GenerateText(const std::string& path,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckSampleOptions(options));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<WeightReader> weights,
                           OpenWeights(path));
  return ContinueText(*weights, tokenizer, ops, options);
}

}  // namespace tessera::train
