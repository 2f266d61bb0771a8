// The names of tokenizer files in a model's directory, which LoadTokenizer
// (load_tokenizer.h) reads.
//
//   if (HasTokenizer("models/smollm")) ...
#ifndef TESSERA_TOOLS_TEXT_TOKENIZER_FILES_H_
#define TESSERA_TOOLS_TEXT_TOKENIZER_FILES_H_

#include <string>
#include <string_view>

namespace tessera::text {

inline constexpr std::string_view kTokenizerJson = "tokenizer.json";
inline constexpr std::string_view kSentencePieceModel = "tokenizer.model";

// True if the directory has one of these files.
bool HasTokenizer(const std::string& directory);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKENIZER_FILES_H_
