// Loads the tokenizer in a file or in a model's directory.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
//                            LoadTokenizer("models/smollm"));
//
//   file             format                        header
//   tokenizer.json   Hugging Face, byte-level BPE  tokenizer_json.h
//   tokenizer.model  SentencePiece, unigram, BPE   sentencepiece_tokenizer.h
#ifndef TESSERA_TOOLS_TEXT_LOAD_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_LOAD_TOKENIZER_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// `path` is a directory or a file, which is a SentencePiece model if its name
// is *.model and otherwise a tokenizer.json. In a directory the tokenizer.json
// is read; if it is missing or of an unsupported kind (as in SentencePiece
// models that have both), the tokenizer.model is read. The end of text is the
// eos_token of the tokenizer_config.json beside the file, if there is one,
// otherwise the tokenizer's own. The begin of text is the bos_token if that
// file has "add_bos_token": true, none if it is false, otherwise the special
// tokens that the post_processor of the tokenizer.json puts before a text. The
// fingerprint is a hash of the file, of the end of text and of `special`.
//
// NotFound if there is no such file; InvalidArgument if it is malformed or too
// large; Unimplemented if it is of an unsupported kind. The message is one line
// with the file's path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& path,
    SpecialTokenPolicy special = SpecialTokenPolicy::kPairs);

// The policy of a value of --special_tokens: "pairs", "ids" (all) or "text"
// (none). InvalidArgument for another text.
absl::StatusOr<SpecialTokenPolicy> ParseSpecialTokens(std::string_view text);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_LOAD_TOKENIZER_H_
