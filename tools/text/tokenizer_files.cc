#include "tools/text/tokenizer_files.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tessera::text {

bool HasTokenizer(const std::string& directory) {
  for (const std::string_view file : {kTokenizerJson, kSentencePieceModel}) {
    if (access(absl::StrCat(directory, "/", file).c_str(), F_OK) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace tessera::text
