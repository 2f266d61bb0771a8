#include "tools/text/preferences.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/text/token_ranges.h"

namespace tessera::text {

absl::Status PreferenceCorpus::AddSequence(const Document& document,
                                           const char* completion) {
  EncodedDocument encoded = EncodeDocument(tokenizer_, document);
  const int64_t prompt = encoded.masked.empty() ? 0 : encoded.masked[0].end;
  const auto tokens = static_cast<int64_t>(encoded.ids.size());
  if (prompt == 0) {
    return absl::InvalidArgumentError(
        "the prompt has no tokens, but completions follow at least one; give "
        "a prompt");
  }
  if (prompt == tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", completion, " completion has no tokens"));
  }
  if (tokens > length_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt and the ", completion, " completion have ",
                     tokens, " tokens, and sequences have ", length_,
                     "; use longer sequences or drop the line"));
  }
  constexpr TokenId kPadding = 0;  // Every vocabulary has it.
  encoded.ids.resize(static_cast<size_t>(length_), kPadding);
  if (tokens < length_) encoded.masked.push_back({tokens, length_});
  sequences_.push_back(std::move(encoded));
  return absl::OkStatus();
}

absl::Status PreferenceCorpus::Add(const Preference& pair) {
  TESSERA_RETURN_IF_ERROR(AddSequence(pair.chosen, "chosen"));
  return AddSequence(pair.rejected, "rejected");
}

absl::StatusOr<std::shared_ptr<const Corpus>> PreferenceCorpus::Build() const {
  if (sequences_.empty()) {
    return absl::InvalidArgumentError(
        "the data has no pairs; give lines with \"prompt\", \"chosen\" and "
        "\"rejected\"");
  }
  std::vector<Document> documents;
  for (const EncodedDocument& sequence : sequences_) {
    documents.push_back({.ids = sequence.ids, .masked = sequence.masked});
  }
  // The last position of the last sequence has a target, too.
  static constexpr TokenId kEnd[] = {0};
  static constexpr TokenRange kMasked[] = {{0, 1}};
  documents.push_back({.ids = kEnd, .masked = kMasked});
  return Corpus::FromDocuments(documents, tokenizer_);
}

absl::StatusOr<std::shared_ptr<const Corpus>> OpenPreferences(
    std::span<const std::string> paths, const Tokenizer& tokenizer,
    int64_t length) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DataFile> files,
                           FindDataFiles(paths));
  PreferenceCorpus corpus(tokenizer, length);
  for (const DataFile& file : files) {
    if (!IsText(file.kind)) {
      return absl::InvalidArgumentError(
          absl::StrCat("data file ", QuotedPath(file.path),
                       " has tokens, not pairs; give JSON lines"));
    }
    TESSERA_RETURN_IF_ERROR(ForEachPreference(
        file, [&](const Preference& pair) { return corpus.Add(pair); },
        tokenizer.vocabulary_size()));
  }
  return corpus.Build();
}

}  // namespace tessera::text
