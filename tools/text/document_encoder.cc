#include "tools/text/document_encoder.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::text {
namespace {

// Enough documents to keep all threads busy.
constexpr int64_t kBatchBytes = int64_t{16} << 20;

}  // namespace

EncodedDocument EncodeDocument(const Tokenizer& tokenizer,
                               const Document& document) {
  const auto encode = [&](std::string_view text) {
    return tokenizer.Encode(text, SpecialTokens::kAsText);
  };
  EncodedDocument encoded;
  if (document.prompt.empty()) {
    encoded.ids = encode(document.text);
  } else {
    const std::vector<TokenId> prompt = encode(document.prompt);
    encoded.prompt = static_cast<int64_t>(prompt.size());
    encoded.ids = encode(absl::StrCat(document.prompt, document.text));
    if (encoded.ids.size() < prompt.size() ||
        !std::equal(prompt.begin(), prompt.end(), encoded.ids.begin())) {
      encoded.ids = prompt;
      tokenizer.AppendTokens(document.text, SpecialTokens::kAsText,
                             encoded.ids);
    }
  }
  const std::optional<TokenId> end = tokenizer.end_of_text();
  if (end.has_value()) encoded.ids.push_back(*end);
  return encoded;
}

absl::Status DocumentEncoder::Add(const Document& document) {
  waiting_.push_back(
      {std::string(document.prompt), std::string(document.text)});
  waiting_bytes_ +=
      static_cast<int64_t>(document.prompt.size() + document.text.size());
  return waiting_bytes_ < kBatchBytes ? absl::OkStatus() : Flush();
}

absl::Status DocumentEncoder::Finish() {
  TESSERA_RETURN_IF_ERROR(Flush());
  return writer_.Finish();
}

absl::Status DocumentEncoder::Flush() {
  std::vector<EncodedDocument> documents(waiting_.size());
  pool_.Run(static_cast<int64_t>(waiting_.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    documents[at] =
        EncodeDocument(tokenizer_, {waiting_[at].prompt, waiting_[at].text});
  });
  for (const EncodedDocument& document : documents) {
    TESSERA_RETURN_IF_ERROR(writer_.AddDocument(document.ids, document.prompt));
  }
  bytes_ += waiting_bytes_;
  waiting_.clear();
  waiting_bytes_ = 0;
  if (progress_ != nullptr) progress_(*this);
  return absl::OkStatus();
}

}  // namespace tessera::text
