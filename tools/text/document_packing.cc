#include "tools/text/document_packing.h"

#include <algorithm>
#include <map>

#include "base/status_macros.h"

namespace tessera::text {
namespace {

constexpr int64_t kReadTokens = int64_t{1} << 20;

int64_t LengthOf(const TokenRange& range) { return range.end - range.begin; }

// The documents of two or more tokens.
absl::StatusOr<std::vector<TokenRange>> FindDocuments(const Corpus& corpus,
                                                      TokenId end) {
  std::vector<TokenRange> documents;
  std::vector<TokenId> tokens;
  int64_t begin = 0;
  const auto add = [&](int64_t to) {
    if (to - begin > 1) documents.push_back({begin, to});
    begin = to;
  };
  for (int64_t at = 0; at < corpus.token_count(); at += kReadTokens) {
    tokens.resize(
        static_cast<size_t>(std::min(kReadTokens, corpus.token_count() - at)));
    TESSERA_RETURN_IF_ERROR(corpus.Read(at, tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == end) add(at + static_cast<int64_t>(i) + 1);
    }
  }
  add(corpus.token_count());
  return documents;
}

// The documents of each sample, by best-fit decreasing.
std::vector<std::vector<TokenRange>> Pack(std::vector<TokenRange> documents,
                                          int64_t capacity) {
  std::stable_sort(documents.begin(), documents.end(),
                   [](const TokenRange& a, const TokenRange& b) {
                     return LengthOf(a) > LengthOf(b);
                   });
  std::vector<std::vector<TokenRange>> samples;
  std::map<int64_t, std::vector<size_t>> by_room;  // Samples with room left.
  for (const TokenRange& document : documents) {
    const int64_t length = LengthOf(document);
    const auto fitting = by_room.lower_bound(length);
    size_t sample = samples.size();
    int64_t room = capacity;
    if (fitting == by_room.end()) {
      samples.emplace_back();
    } else {
      room = fitting->first;
      sample = fitting->second.back();
      fitting->second.pop_back();
      if (fitting->second.empty()) by_room.erase(fitting);
    }
    samples[sample].push_back(document);
    if (room > length) by_room[room - length].push_back(sample);
  }
  return samples;
}

}  // namespace

absl::StatusOr<DocumentPacking> DocumentPacking::Create(const Corpus& corpus,
                                                        TokenId end,
                                                        int64_t capacity) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<TokenRange> documents,
                           FindDocuments(corpus, end));
  DocumentPacking packing;
  for (TokenRange& document : documents) {
    if (LengthOf(document) <= capacity) continue;
    document.end = document.begin + capacity;
    ++packing.cut_;
  }
  std::vector<std::vector<TokenRange>> samples =
      Pack(std::move(documents), capacity);
  const auto is_before = [](const TokenRange& a, const TokenRange& b) {
    return a.begin < b.begin;
  };
  for (std::vector<TokenRange>& sample : samples) {
    std::sort(sample.begin(), sample.end(), is_before);
  }
  std::sort(samples.begin(), samples.end(), [&](const auto& a, const auto& b) {
    return is_before(a[0], b[0]);
  });
  for (const std::vector<TokenRange>& sample : samples) {
    packing.documents_.insert(packing.documents_.end(), sample.begin(),
                              sample.end());
    packing.begins_.push_back(packing.documents_.size());
  }
  return packing;
}

int64_t DocumentPacking::memory_bytes() const {
  return static_cast<int64_t>(documents_.size() * sizeof(TokenRange) +
                              begins_.size() * sizeof(size_t));
}

}  // namespace tessera::text
