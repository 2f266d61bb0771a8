#include "tools/train/sample/generate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tensor_parallel/random/philox.h"
#include "tools/model_files/model_config.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/sample/llama_decoder.h"

namespace tessera::train {

namespace {

absl::Status CheckChoice(std::span<const double> logits, double temperature) {
  if (logits.empty()) {
    return absl::InvalidArgumentError("no logits to choose a token from");
  }
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature ", temperature,
                     "; it must be at least 0 and finite, such as 0.8"));
  }
  const auto bad =
      absl::c_find_if(logits, [](double x) { return !std::isfinite(x); });
  if (bad == logits.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the model's logit of token ", bad - logits.begin(), " is ",
                   *bad, ": its weights have diverged"));
}

}  // namespace

absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    double temperature, double uniform) {
  TESSERA_RETURN_IF_ERROR(CheckChoice(logits, temperature));
  const auto largest = absl::c_max_element(logits);
  if (temperature == 0) return largest - logits.begin();
  std::vector<double> sums(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp((logits[i] - *largest) / temperature);
    sums[i] = sum;
  }
  // The first token whose cumulative sum exceeds it, so never one of
  // probability 0.
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), uniform * sum);
  if (chosen == sums.end()) return largest - logits.begin();
  return chosen - sums.begin();
}

namespace {

enum class Form { kWhole, kCutOff, kMalformed };

struct Utf8Bytes {
  Form form = Form::kMalformed;
  size_t length = 1;  // Of a whole one.
};

// The bytes that may follow a first byte (The Unicode Standard, table 3-7).
struct Follow {
  size_t length = 0;           // With the first byte; 0: it begins nothing.
  unsigned char least = 0x80;  // Of the second byte.
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

// C0 except line feeds and tabs, DEL, and C1: U+0080 to U+009F.
bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character == "\n" || character == "\t") return false;
  return first < 0x20 || first == 0x7F ||
         (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
}

}  // namespace

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

namespace {

// The random stream for choosing tokens: "sample" in ASCII.
constexpr uint64_t kSampleStream = 0x73616d706c65;

// The tokens of a text, and a decoder that has read the last ones.
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
  // Keeps as many tokens of a long prompt as fit; later half of them, which
  // leaves room for more.
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

// Room for all tokens but the last one, which is not read.
int64_t CapacityFor(const model_files::ModelConfig& model, size_t prompt,
                    int64_t tokens) {
  return std::min(model.max_positions,
                  static_cast<int64_t>(prompt) + tokens - 1);
}

// Appends tokens until there are enough or the text ends.
absl::Status Write(const text::Tokenizer& tokenizer,
                   const SampleOptions& options, Writer& writer) {
  const tensor_parallel::Philox random(
      {.seed = options.seed, .stream = kSampleStream});
  // The model may have padding tokens, which are not text.
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

namespace {

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

 private:
  std::unique_ptr<ModelReader> reader_;
};

}  // namespace

absl::StatusOr<std::string> GenerateText(const std::string& checkpoint,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckSampleOptions(options));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ModelReader> reader,
                           ModelReader::Open(checkpoint));
  CheckpointWeights weights(std::move(reader));
  return ContinueText(weights, tokenizer, ops, options);
}

}  // namespace tessera::train
