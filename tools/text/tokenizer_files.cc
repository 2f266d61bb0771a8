#include "tools/text/tokenizer_files.h"

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace tessera::text {

bool HasTokenizer(const std::string& directory) {
  for (const std::string_view file : {kTokenizerJson, kSentencePieceModel}) {
    if (PathExists(absl::StrCat(directory, "/", file))) return true;
  }
  return false;
}

}  // namespace tessera::text
