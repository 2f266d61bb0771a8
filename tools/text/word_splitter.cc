#include "tools/text/word_splitter.h"

#include <utility>

#include "tools/text/characters.h"

namespace tessera::text {
namespace {

using enum CharacterClass;

bool IsLineEnd(char c) { return c == '\r' || c == '\n'; }

// The end of the run of characters of class `kind` from `at` on.
size_t EndOfRun(std::string_view text, size_t at, CharacterClass kind) {
  while (at < text.size()) {
    const Character character = CharacterAt(text, at);
    if (character.kind != kind) break;
    at += character.length;
  }
  return at;
}

size_t EndOfNumbers(std::string_view text, size_t at, int most) {
  for (int i = 0; i < most && at < text.size(); ++i) {
    const Character character = CharacterAt(text, at);
    if (character.kind != kNumber) break;
    at += character.length;
  }
  return at;
}

// The end of the given letter of a contraction, or `at` if there is another
// letter. U+017F matches s if case is ignored.
size_t PastLetter(std::string_view text, size_t at, char letter,
                  bool any_case) {
  if (at >= text.size()) return at;
  const char c = text[at];
  if (c == letter || (any_case && c == letter - 'a' + 'A')) return at + 1;
  const bool long_s = any_case && letter == 's' && text.substr(at, 2) == "ſ";
  return long_s ? at + 2 : at;
}

// The end of 's, 't, 're, 've, 'm, 'll or 'd at `at`, or `at` if there is none.
size_t PastContraction(std::string_view text, size_t at, bool any_case) {
  if (text[at] != '\'') return at;
  for (const std::string_view letters :
       {"s", "t", "re", "ve", "m", "ll", "d"}) {
    size_t end = at + 1;
    for (const char letter : letters) {
      const size_t next = PastLetter(text, end, letter, any_case);
      if (next == end) {
        end = at;
        break;
      }
      end = next;
    }
    if (end > at) return end;
  }
  return at;
}

// \s+(?!\S)|\s+ at a space whose run ends at `run_end`: the last space belongs
// to the next word, unless it is the only one.
size_t EndOfSpaces(std::string_view text, size_t begin, size_t run_end) {
  if (run_end == text.size()) return run_end;
  size_t last = begin;
  for (size_t at = begin; at < run_end; at += CharacterAt(text, at).length) {
    last = at;
  }
  return last > begin ? last : run_end;
}

size_t Gpt2End(std::string_view text, size_t begin) {
  const size_t contraction = PastContraction(text, begin, /*any_case=*/false);
  if (contraction > begin) return contraction;
  const size_t start = begin + (text[begin] == ' ' ? 1 : 0);
  if (start < text.size()) {
    const CharacterClass kind = CharacterAt(text, start).kind;
    if (kind != kSpace) return EndOfRun(text, start, kind);
  }
  return EndOfSpaces(text, begin, EndOfRun(text, begin, kSpace));
}

size_t Llama3End(std::string_view text, size_t begin, int most_numbers) {
  const size_t contraction = PastContraction(text, begin, /*any_case=*/true);
  if (contraction > begin) return contraction;
  const Character first = CharacterAt(text, begin);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first.kind == kLetter) return EndOfRun(text, begin, kLetter);
  const size_t second = begin + first.length;
  if (first.kind != kNumber && !IsLineEnd(text[begin])) {
    const size_t end = EndOfRun(text, second, kLetter);
    if (end > second) return end;
  }
  if (first.kind == kNumber) return EndOfNumbers(text, begin, most_numbers);
  // ' ?[^\s\p{L}\p{N}]+[\r\n]*'
  const size_t start = text[begin] == ' ' ? second : begin;
  size_t end = EndOfRun(text, start, kOther);
  if (end > start) {
    while (end < text.size() && IsLineEnd(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+: up to the last line end of the run.
  const size_t run_end = EndOfRun(text, begin, kSpace);
  for (size_t at = run_end; at > begin; --at) {
    if (IsLineEnd(text[at - 1])) return at;
  }
  return EndOfSpaces(text, begin, run_end);
}

size_t DigitsEnd(std::string_view text, size_t begin, bool individual) {
  const Character first = CharacterAt(text, begin);
  if (first.kind == kNumber) {
    return individual ? begin + first.length : EndOfRun(text, begin, kNumber);
  }
  size_t at = begin;
  while (at < text.size()) {
    const Character character = CharacterAt(text, at);
    if (character.kind == kNumber) break;
    at += character.length;
  }
  return at;
}

constexpr std::pair<std::string_view, SplitRule> kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     SplitRule::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     SplitRule::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::kQwen2},
};

}  // namespace

size_t WordEnd(SplitRule rule, std::string_view text, size_t begin) {
  switch (rule) {
    case SplitRule::kGpt2:
      return Gpt2End(text, begin);
    case SplitRule::kLlama3:
      return Llama3End(text, begin, 3);
    case SplitRule::kQwen2:
      return Llama3End(text, begin, 1);
    case SplitRule::kDigits:
      return DigitsEnd(text, begin, /*individual=*/true);
    case SplitRule::kDigitRuns:
      return DigitsEnd(text, begin, /*individual=*/false);
  }
  return text.size();
}

std::optional<SplitRule> RuleOfPattern(std::string_view pattern) {
  for (const auto& [known, rule] : kPatterns) {
    if (known == pattern) return rule;
  }
  return std::nullopt;
}

std::vector<std::string_view> KnownPatterns() {
  std::vector<std::string_view> patterns;
  for (const auto& [known, rule] : kPatterns) patterns.push_back(known);
  return patterns;
}

}  // namespace tessera::text
