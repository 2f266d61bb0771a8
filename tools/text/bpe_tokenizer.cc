#include "tools/text/bpe_tokenizer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/text/characters.h"

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

unsigned char FirstByte(const AddedToken& token) {
  return static_cast<unsigned char>(token.content[0]);
}

// Collects the texts of all ids.
class TextTable {
 public:
  explicit TextTable(size_t tokens) : most_(4 * tokens + 1024) {}

  absl::Status Add(TokenId id, std::string_view text) {
    if (id < 0 || static_cast<size_t>(id) >= most_) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", Quoted(text), " has id ", id,
                       "; for so many tokens ids are from 0 to ", most_ - 1));
    }
    const auto at = static_cast<size_t>(id);
    if (at >= texts_.size()) {
      texts_.resize(at + 1);
      used_.resize(at + 1);
    }
    if (used_[at] && texts_[at] != text) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens ", Quoted(texts_[at]), " and ", Quoted(text),
                       " have the same id, ", id));
    }
    used_[at] = true;
    texts_[at] = std::string(text);
    return absl::OkStatus();
  }
  bool Contains(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < used_.size() &&
           used_[static_cast<size_t>(id)];
  }
  std::vector<std::string> Take() { return std::move(texts_); }

 private:
  size_t most_;
  std::vector<std::string> texts_;
  std::vector<bool> used_;
};

absl::Status AddAll(const BpeTokenizerOptions& options, TextTable& table) {
  for (const auto& [text, id] : options.model.vocabulary) {
    TESSERA_RETURN_IF_ERROR(table.Add(id, text));
  }
  for (const auto& [id, text] : options.other_texts) {
    TESSERA_RETURN_IF_ERROR(table.Add(id, text));
  }
  for (const auto* tokens : {&options.added_first, &options.added_second}) {
    for (const AddedToken& token : *tokens) {
      if (token.content.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the added token with id ", token.id, " has no text"));
      }
      TESSERA_RETURN_IF_ERROR(table.Add(token.id, token.content));
    }
  }
  if (options.end_of_text.has_value() &&
      !table.Contains(*options.end_of_text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the end-of-text id ", *options.end_of_text, " is not a token's id"));
  }
  return absl::OkStatus();
}

std::string NameOfByte(int byte) { return absl::StrFormat("<0x%02X>", byte); }

std::string Normalized(const std::vector<NormalizerStep>& steps,
                       std::string text) {
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::kCompose:
        text = ComposedForm(text);
        break;
      case NormalizerStep::Kind::kPrepend:
        if (!text.empty()) text.insert(0, step.to);
        break;
      case NormalizerStep::Kind::kReplace:
        text = absl::StrReplaceAll(text, {{step.from, step.to}});
        break;
    }
  }
  return text;
}

// The tokens with the content that is found in normalized texts.
AddedTokens NormalizedTokens(const std::vector<NormalizerStep>& steps,
                             std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    token.content = Normalized(steps, std::move(token.content));
  }
  std::erase_if(tokens,
                [](const auto& token) { return token.content.empty(); });
  return AddedTokens(std::move(tokens));
}

// Converts the texts of tokens to those that decoding appends.
void DecodeTexts(const BpeTokenizerOptions& options,
                 std::vector<std::string>& texts) {
  for (const AddedToken& token : options.added_second) {
    texts[static_cast<size_t>(token.id)] =
        Normalized(options.normalizer, token.content);
  }
  if (!options.space_mark.empty()) {
    for (std::string& text : texts) {
      text = absl::StrReplaceAll(text, {{options.space_mark, " "}});
    }
  }
  if (!options.model.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    const auto token = options.model.vocabulary.find(NameOfByte(byte));
    if (token == options.model.vocabulary.end()) continue;
    texts[static_cast<size_t>(token->second)] = static_cast<char>(byte);
  }
}

// The mark of spaces if tokens contain it only at their beginning.
std::string PartMark(const BpeTokenizerOptions& options) {
  const std::string& mark = options.space_mark;
  if (mark.empty() || !options.model.byte_fallback ||
      options.model.whole_words_first) {
    return "";
  }
  for (const auto& [token, id] : options.model.vocabulary) {
    size_t begin = 0;
    while (token.compare(begin, mark.size(), mark) == 0) begin += mark.size();
    if (token.find(mark, begin) != token.npos) return "";
  }
  return mark;
}

// The beginning of the white space at the end of `text`, and the end of that at
// its beginning.
size_t SpaceAtEnd(std::string_view text) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    at += character.length;
    if (character.kind != CharacterClass::kSpace) begin = at;
  }
  return begin;
}
size_t SpaceAtBegin(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const Character character = CharacterAt(text, end);
    if (character.kind != CharacterClass::kSpace) break;
    end += character.length;
  }
  return end;
}

// True if no part of a word adjoins the bytes from `begin` to `end`.
bool IsApart(std::string_view text, size_t begin, size_t end) {
  if (end < text.size() && IsWordCharacter(CharacterAt(text, end))) {
    return false;
  }
  size_t last = begin;  // The last character before `begin`.
  for (int i = 0; i < 4 && last > 0; ++i) {
    --last;
    const Character before = CharacterAt(text.substr(0, begin), last);
    if (before.valid && last + before.length == begin) {
      return !IsWordCharacter(before);
    }
  }
  return true;
}

constexpr size_t kMostCachedWords = 1 << 16;
constexpr size_t kLongestCachedWord = 64;

}  // namespace

BpeModel::BpeModel(Options options) : options_(std::move(options)) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = options_.vocabulary.find(
        options_.byte_fallback ? NameOfByte(byte)
                               : std::string(1, static_cast<char>(byte)));
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

// A symbol that was merged into its predecessor has id -1. Candidates whose
// symbols have changed since are skipped.
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

void BpeModel::PushSymbol(TokenId id, Scratch& scratch) const {
  if (id < 0) return;
  const auto at = static_cast<int32_t>(scratch.symbols_.size());
  scratch.symbols_.push_back({id, at - 1, at + 1});
}

void BpeModel::PushSymbols(std::string_view word, Scratch& scratch) const {
  size_t length = 1;
  for (size_t at = 0; at < word.size(); at += length) {
    if (options_.byte_fallback) {
      length = CharacterAt(word, at).length;
      const auto found = options_.vocabulary.find(word.substr(at, length));
      if (found != options_.vocabulary.end()) {
        PushSymbol(found->second, scratch);
        continue;
      }
    }
    for (const char c : word.substr(at, length)) {
      PushSymbol(byte_ids_[static_cast<unsigned char>(c)], scratch);
    }
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
  PushSymbols(word, scratch);
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

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) {
                     if (FirstByte(a) != FirstByte(b)) {
                       return FirstByte(a) < FirstByte(b);
                     }
                     return a.content.size() > b.content.size();
                   });
  for (const AddedToken& token : tokens_) ++first_of_[FirstByte(token) + 1u];
  for (size_t i = 1; i < first_of_.size(); ++i) {
    first_of_[i] += first_of_[i - 1];
  }
}

AddedTokens::Match AddedTokens::Find(std::string_view text, size_t begin,
                                     bool with_special) const {
  if (tokens_.empty()) return {text.size(), nullptr};
  for (size_t at = begin; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    for (uint32_t i = first_of_[byte]; i < first_of_[byte + 1u]; ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special && !with_special) continue;
      if (text.substr(at, token.content.size()) == token.content) {
        return {at, &token};
      }
    }
  }
  return {text.size(), nullptr};
}

// Encodes one text. Caches the ids of words, because most words recur.
class BpeTokenizer::Encoding {
 public:
  Encoding(const BpeTokenizer& tokenizer, std::vector<TokenId>& ids)
      : tokenizer_(tokenizer), ids_(ids) {}

  void Add(std::string_view text, bool with_special) {
    Between(
        tokenizer_.added_first_, text, with_special, /*is_first=*/true,
        [&](std::string_view part, bool is_first) {
          std::string normalized;
          if (!tokenizer_.normalizer_.empty()) {
            normalized = Normalized(tokenizer_.normalizer_, std::string(part));
            part = normalized;
          }
          Between(
              tokenizer_.added_second_, part, with_special, is_first,
              [&](std::string_view rest, bool first) { Cut(rest, 0, first); });
        });
  }

 private:
  // Appends the added tokens and calls `use` for the texts between them, and
  // with true for a text at the beginning if `is_first`.
  template <typename Use>
  void Between(const AddedTokens& added, std::string_view text,
               bool with_special, bool is_first, Use use) {
    size_t used = 0, at = 0;
    const auto use_until = [&](size_t end) {
      if (used < end) use(text.substr(used, end - used), is_first && used == 0);
    };
    while (at < text.size()) {
      const AddedTokens::Match match = added.Find(text, at, with_special);
      if (match.token == nullptr) break;
      const AddedToken& token = *match.token;
      at = match.begin + token.content.size();
      if (token.is_word && !IsApart(text, match.begin, at)) continue;
      use_until(token.strips_left && used < match.begin
                    ? used + SpaceAtEnd(text.substr(used, match.begin - used))
                    : match.begin);
      ids_.push_back(token.id);
      used = at;
      if (token.strips_right) used += SpaceAtBegin(text.substr(at));
    }
    use_until(text.size());
  }

  // Splits `text` by the rules from index `rule` on.
  void Cut(std::string_view text, size_t rule, bool is_first) {
    if (rule == tokenizer_.rules_.size()) return CutLast(text, is_first);
    for (size_t at = 0; at < text.size();) {
      const size_t end = WordEnd(tokenizer_.rules_[rule], text, at);
      Cut(text.substr(at, end - at), rule + 1, is_first && at == 0);
      at = end;
    }
  }

  void CutLast(std::string_view text, bool is_first) {
    if (tokenizer_.metaspace_.has_value()) {
      return CutAtMarks(*tokenizer_.metaspace_, text, is_first);
    }
    std::string prefixed;
    if (tokenizer_.add_prefix_space_ && text[0] != ' ') {
      prefixed = absl::StrCat(" ", text);
      text = prefixed;
    }
    if (!tokenizer_.last_rule_.has_value()) return AddParts(text);
    for (size_t at = 0; at < text.size();) {
      const size_t end = WordEnd(*tokenizer_.last_rule_, text, at);
      AddWord(text.substr(at, end - at));
      at = end;
    }
  }

  void CutAtMarks(const Metaspace& metaspace, std::string_view text,
                  bool is_first) {
    const std::string& mark = metaspace.mark;
    std::string marked = absl::StrReplaceAll(text, {{" ", mark}});
    const bool may_prefix =
        metaspace.prefix == Metaspace::Prefix::kAlways ||
        (metaspace.prefix == Metaspace::Prefix::kFirst && is_first);
    if (may_prefix && !absl::StartsWith(marked, mark)) marked.insert(0, mark);
    const std::string_view all = marked;
    for (size_t at = 0; at < all.size();) {
      size_t end = metaspace.splits ? all.find(mark, at + 1) : all.npos;
      end = std::min(end, all.size());
      AddParts(all.substr(at, end - at));
      at = end;
    }
  }

  void AddParts(std::string_view word) {
    const std::string& mark = tokenizer_.part_mark_;
    if (mark.empty()) return AddWord(word);
    while (!word.empty()) {
      size_t end = 0;
      while (word.substr(end, mark.size()) == mark) end += mark.size();
      end = std::min(word.find(mark, end), word.size());
      AddWord(word.substr(0, end));
      word.remove_prefix(end);
    }
  }

  void AddWord(std::string_view word) {
    if (word.size() > kLongestCachedWord) {
      return tokenizer_.model_.AppendWord(word, scratch_, ids_);
    }
    const auto found = cache_.find(word);
    if (found != cache_.end()) {
      ids_.insert(ids_.end(), found->second.begin(), found->second.end());
      return;
    }
    const auto before = static_cast<std::ptrdiff_t>(ids_.size());
    tokenizer_.model_.AppendWord(word, scratch_, ids_);
    if (cache_.size() == kMostCachedWords) cache_.clear();
    cache_.try_emplace(std::string(word), ids_.begin() + before, ids_.end());
  }

  const BpeTokenizer& tokenizer_;
  std::vector<TokenId>& ids_;
  BpeModel::Scratch scratch_;
  absl::flat_hash_map<std::string, std::vector<TokenId>> cache_;
};

BpeTokenizer::BpeTokenizer(BpeModel model, BpeTokenizerOptions options,
                           std::vector<std::string> texts,
                           std::string part_mark)
    : model_(std::move(model)),
      rules_(std::move(options.rules)),
      add_prefix_space_(options.add_prefix_space),
      last_rule_(options.last_rule),
      metaspace_(std::move(options.metaspace)),
      normalizer_(std::move(options.normalizer)),
      drops_first_space_(options.drops_first_space),
      part_mark_(std::move(part_mark)),
      added_first_(std::move(options.added_first)),
      added_second_(
          NormalizedTokens(normalizer_, std::move(options.added_second))),
      texts_(std::move(texts)),
      end_of_text_(options.end_of_text) {}

absl::StatusOr<BpeTokenizer> BpeTokenizer::Create(BpeTokenizerOptions options) {
  TextTable table(options.model.vocabulary.size() + options.other_texts.size() +
                  options.added_first.size() + options.added_second.size());
  TESSERA_RETURN_IF_ERROR(AddAll(options, table));
  std::vector<std::string> texts = table.Take();
  DecodeTexts(options, texts);
  std::string part_mark = PartMark(options);
  TESSERA_ASSIGN_OR_RETURN(BpeModel model,
                           BpeModel::Create(std::move(options.model)));
  return BpeTokenizer(std::move(model), std::move(options), std::move(texts),
                      std::move(part_mark));
}

void BpeTokenizer::AppendTokens(std::string_view text, SpecialTokens special,
                                std::vector<TokenId>& ids) const {
  Encoding(*this, ids).Add(text, special == SpecialTokens::kRecognised);
}

void BpeTokenizer::AppendText(std::span<const TokenId> ids,
                              std::string& text) const {
  const bool is_start = text.empty();
  for (const TokenId id : ids) {
    if (id >= 0 && static_cast<size_t>(id) < texts_.size()) {
      text += texts_[static_cast<size_t>(id)];
    }
  }
  if (drops_first_space_ && is_start && absl::StartsWith(text, " ")) {
    text.erase(0, 1);
  }
}

}  // namespace tessera::text
