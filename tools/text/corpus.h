// Corpus: documents as one row of tokens.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::shared_ptr<const Corpus> corpus,
//       Corpus::Open({{"docs", "src/*.cc", "more.u16"}}, ByteTokenizer()));
//   std::vector<TokenId> tokens(257);
//   TESSERA_RETURN_IF_ERROR(corpus->Read(4096, tokens));
//
// Text files are read and tokenised at once, and kept in memory with 2 bytes a
// token where the vocabulary has at most 65536, else 4; behind each text there
// is the tokenizer's end of text, where it has one. Special tokens that are
// written out in a text are text. Token files stay on disk and are taken as
// they are. data_files.h says which files these are, and in which order.
#ifndef TESSERA_TOOLS_TEXT_CORPUS_H_
#define TESSERA_TOOLS_TEXT_CORPUS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/packed_tokens.h"
#include "tools/text/token_file.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// A text file has at most this many bytes; more are better made tokens before.
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 31;

// Const calls may be made by several threads at once.
class Corpus {
 public:
  // Refuses what FindDataFiles and TokenFile::Open refuse, and text files of
  // more than kMaxTextBytes.
  static absl::StatusOr<std::shared_ptr<const Corpus>> Open(
      std::span<const std::string> paths, const Tokenizer& tokenizer);

  // Texts that are in memory. InvalidArgument where there is none.
  static absl::StatusOr<std::shared_ptr<const Corpus>> FromTexts(
      std::span<const std::string> texts, const Tokenizer& tokenizer);

  int64_t token_count() const { return starts_.back(); }
  int64_t file_count() const { return file_count_; }

  // Of texts; token files take none.
  int64_t memory_bytes() const;

  // The tokens [begin, begin + tokens.size()). OutOfRange where there are not
  // so many; else what TokenFile::Read refuses.
  absl::Status Read(int64_t begin, std::span<TokenId> tokens) const;

  // A number that another corpus or vocabulary would hardly have: of all tokens
  // of texts, and of the length, the first and the last 65536 tokens of each
  // token file. For checkpoints, to see that they go on with the same data.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  using Segment = std::variant<PackedTokens, TokenFile>;

  Corpus() = default;

  PackedTokens& LastTexts(int64_t vocabulary);
  void AddText(std::string_view text, const Tokenizer& tokenizer);
  absl::Status AddTokenFile(const std::string& path, int64_t vocabulary);
  void Mix(std::span<const TokenId> tokens);

  std::vector<Segment> segments_;
  std::vector<int64_t> starts_ = {0};  // Of the segments; then the end.
  int64_t file_count_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_CORPUS_H_
