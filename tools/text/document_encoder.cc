#include "tools/text/document_encoder.h"

#include <cstddef>
#include <optional>

#include "base/status_macros.h"

namespace tessera::text {
namespace {

// Enough documents to keep all threads busy.
constexpr int64_t kBatchBytes = int64_t{16} << 20;

}  // namespace

absl::Status DocumentEncoder::Add(std::string_view document) {
  waiting_.emplace_back(document);
  waiting_bytes_ += static_cast<int64_t>(document.size());
  return waiting_bytes_ < kBatchBytes ? absl::OkStatus() : Flush();
}

absl::Status DocumentEncoder::Finish() {
  TESSERA_RETURN_IF_ERROR(Flush());
  return writer_.Finish();
}

absl::Status DocumentEncoder::Flush() {
  std::vector<std::vector<TokenId>> ids(waiting_.size());
  pool_.Run(static_cast<int64_t>(waiting_.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    tokenizer_.AppendTokens(waiting_[at], SpecialTokens::kAsText, ids[at]);
    const std::optional<TokenId> end = tokenizer_.end_of_text();
    if (end.has_value()) ids[at].push_back(*end);
  });
  for (const std::vector<TokenId>& document : ids) {
    TESSERA_RETURN_IF_ERROR(writer_.AddDocument(document));
  }
  bytes_ += waiting_bytes_;
  waiting_.clear();
  waiting_bytes_ = 0;
  if (progress_ != nullptr) progress_(*this);
  return absl::OkStatus();
}

}  // namespace tessera::text
