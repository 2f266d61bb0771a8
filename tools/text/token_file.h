// TokenFile: tokens that were made before, 16 or 32 bits each, little-endian,
// with nothing before, between or behind them.
//
//   TESSERA_RETURN_IF_ERROR(WriteTokenFile("train.u16", ids));
//   TESSERA_ASSIGN_OR_RETURN(auto file, TokenFile::Open("train.u16", 50257));
//   TESSERA_RETURN_IF_ERROR(file.Read(1000, tokens));
#ifndef TESSERA_TOOLS_TEXT_TOKEN_FILE_H_
#define TESSERA_TOOLS_TEXT_TOKEN_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

class TokenFile {
 public:
  // The width is that of KindOf(path). Reads nothing but the size.
  // InvalidArgument where the file is empty, no whole number of tokens, or
  // called otherwise; else what the system says.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        int64_t vocabulary);

  int64_t token_count() const { return token_count_; }

  // The tokens [begin, begin + tokens.size()), straight from the file, by way
  // of the system's page cache, which the ranks of a host share. OutOfRange
  // where there are not so many, InvalidArgument where one is not below the
  // vocabulary (its place is named), DataLoss where the file has become
  // shorter. May be called by several threads at once.
  absl::Status Read(int64_t begin, std::span<TokenId> tokens) const;

 private:
  TokenFile(std::string path, UniqueFd fd, int64_t width, int64_t vocabulary,
            int64_t token_count)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        width_(width),
        vocabulary_(vocabulary),
        token_count_(token_count) {}

  std::string path_;
  UniqueFd fd_;
  int64_t width_;  // Bytes.
  int64_t vocabulary_;
  int64_t token_count_;
};

// Replaces the file as a whole. The width is that of KindOf(path).
// InvalidArgument where the name is no token file's or an id does not fit.
absl::Status WriteTokenFile(const std::string& path,
                            std::span<const TokenId> tokens);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKEN_FILE_H_
