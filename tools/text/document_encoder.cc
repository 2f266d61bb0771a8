#include "tools/text/document_encoder.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::text {
namespace {

// Enough documents to keep all threads busy.
constexpr int64_t kBatchBytes = int64_t{16} << 20;

}  // namespace

EncodedDocument EncodeDocument(const Tokenizer& tokenizer,
                               const Document& document) {
  EncodedDocument encoded;
  if (!document.ids.empty()) {
    encoded.ids.assign(document.ids.begin(), document.ids.end());
    encoded.masked.assign(document.masked.begin(), document.masked.end());
    return encoded;
  }
  const SpecialTokens special = document.is_pair
                                    ? tokenizer.SpecialTokensOfPairs()
                                    : tokenizer.SpecialTokensOfTexts();
  std::vector<TokenId> prompt;
  if (document.prompt.empty()) {
    encoded.ids = tokenizer.Encode(document.text, special);
  } else {
    prompt = tokenizer.Encode(document.prompt, special);
    if (!prompt.empty()) {
      encoded.masked = {{0, static_cast<int64_t>(prompt.size())}};
    }
    encoded.ids =
        tokenizer.Encode(absl::StrCat(document.prompt, document.text), special);
    if (encoded.ids.size() < prompt.size() ||
        !std::equal(prompt.begin(), prompt.end(), encoded.ids.begin())) {
      encoded.ids = prompt;
      tokenizer.AppendTokens(document.text, special, encoded.ids);
    }
  }
  const std::optional<TokenId> end = tokenizer.end_of_text();
  const bool has_end =
      encoded.ids.size() > prompt.size() && encoded.ids.back() == end;
  if (end.has_value() && !has_end) encoded.ids.push_back(*end);
  return encoded;
}

absl::Status DocumentEncoder::Add(const Document& document) {
  Waiting& waiting = waiting_.emplace_back();
  waiting.is_pair = document.is_pair;
  waiting.prompt = document.prompt;
  waiting.text = document.text;
  if (!document.ids.empty()) {
    waiting.tokens = EncodeDocument(tokenizer_, document);
  }
  waiting_bytes_ +=
      static_cast<int64_t>(document.prompt.size() + document.text.size() +
                           document.ids.size_bytes());
  return waiting_bytes_ < kBatchBytes ? absl::OkStatus() : Flush();
}

absl::Status DocumentEncoder::Finish() {
  TESSERA_RETURN_IF_ERROR(Flush());
  return writer_.Finish();
}

absl::Status DocumentEncoder::Flush() {
  pool_.Run(static_cast<int64_t>(waiting_.size()), [&](int64_t i) {
    Waiting& waiting = waiting_[static_cast<size_t>(i)];
    if (!waiting.tokens.ids.empty()) return;
    waiting.tokens = EncodeDocument(
        tokenizer_, {waiting.prompt, waiting.text, waiting.is_pair});
  });
  for (const Waiting& waiting : waiting_) {
    TESSERA_RETURN_IF_ERROR(
        writer_.AddDocument(waiting.tokens.ids, waiting.tokens.masked));
  }
  bytes_ += waiting_bytes_;
  waiting_.clear();
  waiting_bytes_ = 0;
  if (progress_ != nullptr) progress_(*this);
  return absl::OkStatus();
}

}  // namespace tessera::text
