// Sets of ranges within a sequence of tokens, for example of its prompts.
//
//   TokenRanges prompts;
//   prompts.Append({0, 3});
//   prompts.Append({10, 12});
//   prompts.CountIn({2, 11});  // 2: the tokens 2 and 10.
//   prompts.PartsIn({2, 11});  // {2, 3} and {10, 11}.
#ifndef TESSERA_TOOLS_TEXT_TOKEN_RANGES_H_
#define TESSERA_TOOLS_TEXT_TOKEN_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

namespace tessera::text {

// The tokens [begin, end).
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

std::ostream& operator<<(std::ostream& os, const TokenRange& range);

// Ascending, disjoint ranges that do not touch. A call takes time that grows
// with the logarithm of the number of ranges. Const calls are thread-safe.
class TokenRanges {
 public:
  // Adds a range, which must not begin before the end of the last one; if it
  // begins there, it extends the last range. Ignores an empty range.
  void Append(TokenRange range);

  bool empty() const { return ranges_.empty(); }
  std::span<const TokenRange> ranges() const { return ranges_; }
  int64_t memory_bytes() const;

  // The number of tokens of `whole` that are in a range.
  int64_t CountIn(TokenRange whole) const;
  // The parts of `whole` that are in a range.
  std::vector<TokenRange> PartsIn(TokenRange whole) const;

  friend bool operator==(const TokenRanges&, const TokenRanges&) = default;

 private:
  // The number of ranges that begin before `token`.
  size_t RangesBefore(int64_t token) const;
  int64_t CountBefore(int64_t token) const;

  std::vector<TokenRange> ranges_;
  std::vector<int64_t> before_;  // Tokens in all ranges before each range.
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKEN_RANGES_H_
