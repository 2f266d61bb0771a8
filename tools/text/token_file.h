// TokenFile reads a file of tokens.
#ifndef TESSERA_TOOLS_TEXT_TOKEN_FILE_H_
#define TESSERA_TOOLS_TEXT_TOKEN_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "tools/text/indexed_dataset.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Reads a file of tokens: consecutive little-endian integers, which have 1 to 8
// bytes in indexed data sets and in NumPy arrays (format versions 1 to 3, one
// dimension). A *.u16, *.u32 or *.bin that begins with the header of llm.c has
// the type and the number of tokens that the header states.
//
//   TESSERA_ASSIGN_OR_RETURN(auto file, TokenFile::Open("train.u16", 50257));
//   TESSERA_RETURN_IF_ERROR(file.Read(1000, tokens));
class TokenFile {
 public:
  // Reads only the file size, the beginning and, if there is one, the index.
  // InvalidArgument if the file is empty, is a text file of any name, does not
  // contain a whole number of tokens, or contradicts its index or header;
  // Unimplemented if its elements are not integers; otherwise the system's
  // error.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        int64_t vocabulary);

  int64_t token_count() const { return token_count_; }
  // The tokens of prompts; always empty unless the file is an indexed data set.
  const TokenRanges& prompts() const { return prompts_; }

  // Reads the tokens [begin, begin + tokens.size()) through the system's page
  // cache, which the ranks of a host share. OutOfRange past the end,
  // InvalidArgument with the position for an id outside of the vocabulary,
  // DataLoss if the file has become shorter. Thread-safe.
  absl::Status Read(int64_t begin, std::span<TokenId> tokens) const;

 private:
  TokenFile(std::string path, UniqueFd fd, int64_t offset, TokenType type,
            int64_t vocabulary, int64_t token_count, TokenRanges prompts)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        offset_(offset),
        type_(type),
        vocabulary_(vocabulary),
        token_count_(token_count),
        prompts_(std::move(prompts)) {}

  std::string path_;
  UniqueFd fd_;
  int64_t offset_;  // Bytes before the first token.
  TokenType type_;
  int64_t vocabulary_;
  int64_t token_count_;
  TokenRanges prompts_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKEN_FILE_H_
