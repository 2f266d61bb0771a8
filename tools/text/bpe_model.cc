#include "tools/text/bpe_model.h"

#include <algorithm>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::text {
namespace {

absl::StatusOr<TokenId> Lookup(
    const absl::flat_hash_map<std::string, TokenId>& vocabulary,
    const std::string& token, size_t merge) {
  const auto found = vocabulary.find(token);
  if (found != vocabulary.end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat(
      "merge ", merge, ": ", Quoted(token), " is not in the vocabulary"));
}

}  // namespace

BpeModel::BpeModel(Options options) : options_(std::move(options)) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto found =
        options_.vocabulary.find(std::string(1, static_cast<char>(byte)));
    byte_ids_[static_cast<size_t>(byte)] =
        found == options_.vocabulary.end() ? -1 : found->second;
  }
}

absl::StatusOr<BpeModel> BpeModel::Create(Options options) {
  BpeModel model(std::move(options));
  const auto& vocabulary = model.options_.vocabulary;
  int32_t rank = 0;
  for (const auto& [left, right] : model.options_.merges) {
    const auto merge = static_cast<size_t>(rank);
    TESSERA_ASSIGN_OR_RETURN(const TokenId a, Lookup(vocabulary, left, merge));
    TESSERA_ASSIGN_OR_RETURN(const TokenId b, Lookup(vocabulary, right, merge));
    TESSERA_ASSIGN_OR_RETURN(
        const TokenId both,
        Lookup(vocabulary, absl::StrCat(left, right), merge));
    model.merges_[Key(a, b)] = {rank++, both};
  }
  model.options_.merges.clear();
  return model;
}

bool BpeModel::covers_all_bytes() const {
  return std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
}

void BpeModel::PushCandidate(int32_t position, Scratch& scratch) const {
  if (position < 0) return;
  const auto& left = scratch.symbols_[static_cast<size_t>(position)];
  if (left.next < 0) return;
  const TokenId right = scratch.symbols_[static_cast<size_t>(left.next)].id;
  const auto found = merges_.find(Key(left.id, right));
  if (found == merges_.end()) return;
  scratch.heap_.push_back({found->second.rank, position, left.id, right});
  std::push_heap(scratch.heap_.begin(), scratch.heap_.end(),
                 [](const auto& a, const auto& b) {
                   return std::tie(a.rank, a.position) >
                          std::tie(b.rank, b.position);
                 });
}

// Symbols that were merged into the one before them have id -1. A candidate
// whose symbols are not what they were is out of date.
void BpeModel::MergeAll(Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  while (!scratch.heap_.empty()) {
    std::pop_heap(scratch.heap_.begin(), scratch.heap_.end(),
                  [](const auto& a, const auto& b) {
                    return std::tie(a.rank, a.position) >
                           std::tie(b.rank, b.position);
                  });
    const Scratch::Candidate candidate = scratch.heap_.back();
    scratch.heap_.pop_back();
    auto& left = symbols[static_cast<size_t>(candidate.position)];
    if (left.id != candidate.left || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != candidate.right) continue;
    left.id = merges_.find(Key(left.id, right.id))->second.result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      symbols[static_cast<size_t>(left.next)].previous = candidate.position;
    }
    PushCandidate(left.previous, scratch);
    PushCandidate(candidate.position, scratch);
  }
}

void BpeModel::AppendWord(std::string_view word, Scratch& scratch,
                          std::vector<TokenId>& ids) const {
  if (options_.whole_words_first) {
    const auto found = options_.vocabulary.find(word);
    if (found != options_.vocabulary.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  auto& symbols = scratch.symbols_;
  symbols.clear();
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) continue;
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  scratch.heap_.clear();
  for (size_t i = 0; i < symbols.size(); ++i) {
    PushCandidate(static_cast<int32_t>(i), scratch);
  }
  MergeAll(scratch);
  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next) {
    ids.push_back(symbols[static_cast<size_t>(at)].id);
  }
}

}  // namespace tessera::text
