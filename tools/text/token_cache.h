// TokenCache: the tokens of text files on disk, so that each file is tokenised
// once by each tokenizer.
//
//   const TokenCache cache("/home/me/.cache/tessera/tokens");
//   if (cache.Keeps(file, tokenizer)) {
//     TESSERA_ASSIGN_OR_RETURN(TokenFile tokens, cache.Open(file, tokenizer));
//   }
//
// An entry is an indexed data set whose name is the hashes of the file's bytes
// and of the tokenizer: a file that has changed is another entry, and a copy of
// it the same. Entries that are not needed any more may be deleted at any time
// at which no run uses them.
#ifndef TESSERA_TOOLS_TEXT_TOKEN_CACHE_H_
#define TESSERA_TOOLS_TEXT_TOKEN_CACHE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "tools/text/data_files.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Const calls are thread-safe.
class TokenCache {
 public:
  // Shorter texts are tokenised in about a second.
  static constexpr int64_t kMinTextBytes = int64_t{1} << 20;

  // `directory` and its parents are created if needed; empty: keeps nothing.
  explicit TokenCache(std::string directory)
      : directory_(std::move(directory)) {}

  // Whether the file is a text of at least kMinTextBytes, and the tokenizer was
  // loaded from a file.
  bool Keeps(const DataFile& file, const Tokenizer& tokenizer) const;

  // The tokens of the file's documents, each followed by the end of text. If
  // there is no usable entry, tokenises with all processors and replaces the
  // entry as a whole. Of several processes that need the same entry one makes
  // it, and the others wait.
  //
  // The errors of ForEachDocument, IndexedDatasetWriter and TokenFile::Open;
  // Aborted if the file changes meanwhile.
  absl::StatusOr<TokenFile> Open(const DataFile& file,
                                 const Tokenizer& tokenizer) const;

 private:
  std::string directory_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKEN_CACHE_H_
