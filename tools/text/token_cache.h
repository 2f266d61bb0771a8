// A cache on disk for the tokens of text files, so that each tokenizer encodes
// each file only once.
//
//   const TokenCache cache("/home/me/.cache/tessera/tokens");
//   if (cache.Keeps(file, tokenizer)) {
//     TESSERA_ASSIGN_OR_RETURN(TokenFile tokens, cache.Open(file, tokenizer));
//   }
//
// An entry is an indexed data set, named by the hashes of the file's bytes and
// of the tokenizer, so that a changed file has a new entry and a copy shares
// the entry of the original. Entries may be deleted while no run uses them.
#ifndef TESSERA_TOOLS_TEXT_TOKEN_CACHE_H_
#define TESSERA_TOOLS_TEXT_TOKEN_CACHE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "tools/text/data_files.h"
#include "tools/text/token_file.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Const calls are thread-safe.
class TokenCache {
 public:
  // Shorter texts are not cached: tokenising them takes about a second.
  static constexpr int64_t kMinTextBytes = int64_t{1} << 20;

  // Open creates `directory` and its parents if needed. An empty `directory`
  // disables the cache.
  explicit TokenCache(std::string directory)
      : directory_(std::move(directory)) {}

  // True if the cache applies: the file is a text of at least kMinTextBytes,
  // and the tokenizer was loaded from a file.
  bool Keeps(const DataFile& file, const Tokenizer& tokenizer) const;

  // Returns the tokens of the file's documents, each followed by the end of
  // text. If there is no usable entry, tokenises the file with all processors
  // and replaces the entry atomically. If several processes need the same
  // entry, one creates it while the others wait.
  //
  // Returns the errors of ForEachDocument, IndexedDatasetWriter and
  // TokenFile::Open; Aborted if the file changes during the call.
  absl::StatusOr<TokenFile> Open(const DataFile& file,
                                 const Tokenizer& tokenizer) const;

 private:
  std::string directory_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKEN_CACHE_H_
