// Splits a text into the words within which byte-pair encoding merges.
//
//   for (size_t at = 0; at < text.size();) {
//     const size_t end = WordEnd(SplitRule::kGpt2, text, at);
//     Use(text.substr(at, end - at));
//     at = end;
//   }
//
// The rules implement the regular expressions of well-known models without a
// regular-expression engine, leftmost alternative first. Every byte is in
// exactly one word.
#ifndef TESSERA_TOOLS_TEXT_WORD_SPLITTER_H_
#define TESSERA_TOOLS_TEXT_WORD_SPLITTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera::text {

enum class SplitRule : uint8_t {
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  //  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kLlama3,
  // The same with \p{N} instead of \p{N}{1,3}.
  kQwen2,
  // Each number character (\p{N}) is a word; so is each run between them.
  kDigits,
  // Runs of number characters, and runs of other characters.
  kDigitRuns,
};

// The end of the word that begins at byte `begin` of `text`, which is 0 or the
// end of the previous word.
size_t WordEnd(SplitRule rule, std::string_view text, size_t begin);

// The rule for a regular expression in a tokenizer.json, if it is supported.
std::optional<SplitRule> RuleOfPattern(std::string_view pattern);
// The patterns that RuleOfPattern supports.
std::vector<std::string_view> KnownPatterns();

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_WORD_SPLITTER_H_
