#include "tools/text/corpus.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/text/data_files.h"
#include "tools/text/document_encoder.h"
#include "tools/text/text_hash.h"

namespace tessera::text {
namespace {

constexpr int64_t kSampledTokens = 65536;

uint64_t Mixed(uint64_t fingerprint, std::span<const TokenId> tokens) {
  for (const TokenId id : tokens) {
    fingerprint = Scramble(fingerprint ^ static_cast<uint64_t>(id));
  }
  return fingerprint;
}

}  // namespace

void Corpus::Mix(std::span<const TokenId> tokens) {
  fingerprint_ = Mixed(fingerprint_, tokens);
}

// Consecutive texts share a segment.
PackedTokens& Corpus::LastTexts(int64_t vocabulary) {
  if (segments_.empty() ||
      !std::holds_alternative<PackedTokens>(segments_.back())) {
    segments_.emplace_back(PackedTokens(vocabulary));
    starts_.push_back(starts_.back());
  }
  return std::get<PackedTokens>(segments_.back());
}

void Corpus::AddDocument(const Document& document, const Tokenizer& tokenizer) {
  const EncodedDocument encoded = EncodeDocument(tokenizer, document);
  LastTexts(tokenizer.vocabulary_size()).Append(encoded.ids);
  for (const TokenRange& range : encoded.masked) {
    prompts_.Append({starts_.back() + range.begin, starts_.back() + range.end});
  }
  starts_.back() += static_cast<int64_t>(encoded.ids.size());
  Mix(encoded.ids);
}

void Corpus::MixPrompts() {
  for (const TokenRange& prompt : prompts_.ranges()) {
    for (const int64_t token : {prompt.begin, prompt.end}) {
      fingerprint_ = Scramble(fingerprint_ ^ static_cast<uint64_t>(token));
    }
  }
}

absl::Status Corpus::AddTokenFile(const std::string& path, int64_t vocabulary) {
  TESSERA_ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(path, vocabulary));
  const int64_t count = file.token_count();
  std::vector<TokenId> sample(
      static_cast<size_t>(std::min(count, kSampledTokens)));
  TESSERA_RETURN_IF_ERROR(file.Read(0, sample));
  Mix(sample);
  TESSERA_RETURN_IF_ERROR(
      file.Read(count - static_cast<int64_t>(sample.size()), sample));
  Mix(sample);
  fingerprint_ = Scramble(fingerprint_ ^ static_cast<uint64_t>(count));
  AddSegment(std::move(file));
  return absl::OkStatus();
}

absl::Status Corpus::AddCachedText(TokenFile file) {
  uint64_t fingerprint = fingerprint_;
  std::vector<TokenId> tokens;
  for (int64_t begin = 0; begin < file.token_count(); begin += kSampledTokens) {
    tokens.resize(static_cast<size_t>(
        std::min(kSampledTokens, file.token_count() - begin)));
    TESSERA_RETURN_IF_ERROR(file.Read(begin, tokens));
    fingerprint = Mixed(fingerprint, tokens);
  }
  fingerprint_ = fingerprint;
  AddSegment(std::move(file));
  return absl::OkStatus();
}

void Corpus::AddSegment(TokenFile file) {
  for (const TokenRange& prompt : file.prompts().ranges()) {
    prompts_.Append(
        {starts_.back() + prompt.begin, starts_.back() + prompt.end});
  }
  starts_.push_back(starts_.back() + file.token_count());
  segments_.emplace_back(std::move(file));
}

absl::StatusOr<std::shared_ptr<const Corpus>> Corpus::Open(
    std::span<const std::string> paths, const Tokenizer& tokenizer,
    const TokenCache& cache, int64_t max_bad_lines) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DataFile> files,
                           FindDataFiles(paths));
  auto corpus = std::shared_ptr<Corpus>(new Corpus);
  int64_t bad_lines_left = max_bad_lines;
  for (const DataFile& file : files) {
    ++corpus->file_count_;
    if (!IsText(file.kind)) {
      TESSERA_RETURN_IF_ERROR(
          corpus->AddTokenFile(file.path, tokenizer.vocabulary_size()));
      continue;
    }
    if (cache.Keeps(file, tokenizer)) {
      absl::StatusOr<TokenFile> tokens = cache.Open(file, tokenizer);
      // ForEachDocument below reports errors of the text itself.
      if (tokens.ok() && corpus->AddCachedText(*std::move(tokens)).ok()) {
        continue;
      }
    }
    TESSERA_RETURN_IF_ERROR(
        ForEachDocument(file,
                        [&](const Document& document) {
                          corpus->AddDocument(document, tokenizer);
                          return absl::OkStatus();
                        },
                        {.vocabulary = tokenizer.vocabulary_size(),
                         .bad_lines = &bad_lines_left}));
  }
  corpus->bad_lines_ = max_bad_lines - bad_lines_left;
  corpus->MixPrompts();
  return corpus;
}

absl::StatusOr<std::shared_ptr<const Corpus>> Corpus::FromTexts(
    std::span<const std::string> texts, const Tokenizer& tokenizer) {
  std::vector<Document> documents;
  for (const std::string& text : texts) documents.push_back({.text = text});
  return FromDocuments(documents, tokenizer);
}

absl::StatusOr<std::shared_ptr<const Corpus>> Corpus::FromDocuments(
    std::span<const Document> documents, const Tokenizer& tokenizer) {
  if (documents.empty()) {
    return absl::InvalidArgumentError("a corpus of no texts; give at least 1");
  }
  auto corpus = std::shared_ptr<Corpus>(new Corpus);
  for (const Document& document : documents) {
    corpus->AddDocument(document, tokenizer);
  }
  corpus->MixPrompts();
  corpus->file_count_ = static_cast<int64_t>(documents.size());
  return corpus;
}

int64_t Corpus::memory_bytes() const {
  int64_t bytes = prompts_.memory_bytes();
  for (const Segment& segment : segments_) {
    if (const auto* tokens = std::get_if<PackedTokens>(&segment)) {
      bytes += tokens->bytes();
    }
  }
  return bytes;
}

absl::Status Corpus::Read(int64_t begin, std::span<TokenId> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  if (begin < 0 || count > token_count() || begin > token_count() - count) {
    return absl::OutOfRangeError(absl::StrCat(count, " tokens from ", begin,
                                              " on are not among the ",
                                              token_count(), " of the data"));
  }
  auto segment = static_cast<size_t>(
      std::upper_bound(starts_.begin(), starts_.end(), begin) -
      starts_.begin() - 1);
  while (!tokens.empty()) {
    const int64_t offset = begin - starts_[segment];
    const int64_t size =
        std::min(static_cast<int64_t>(tokens.size()),
                 starts_[segment + 1] - starts_[segment] - offset);
    const std::span<TokenId> part = tokens.first(static_cast<size_t>(size));
    if (const auto* file = std::get_if<TokenFile>(&segments_[segment])) {
      TESSERA_RETURN_IF_ERROR(file->Read(offset, part));
    } else {
      std::get<PackedTokens>(segments_[segment]).Read(offset, part);
    }
    tokens = tokens.subspan(part.size());
    begin += size;
    ++segment;
  }
  return absl::OkStatus();
}

}  // namespace tessera::text
