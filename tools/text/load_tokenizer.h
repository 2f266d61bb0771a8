// LoadTokenizer: the tokenizer of a file or of a model's directory.
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

#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// `path` is a file, *.model for SentencePiece and any other name for a
// tokenizer.json, or a directory. A directory's tokenizer.json is read; if
// there is none, or it is of an unsupported kind (as in models of SentencePiece
// that have both), the tokenizer.model. The end of text is the eos_token of the
// tokenizer_config.json beside the file; without one, the tokenizer's own. The
// fingerprint is a hash of the file and that end of text.
//
// NotFound if there is no such file; InvalidArgument if it is malformed or too
// large; Unimplemented if it is of an unsupported kind. The message is one line
// with the file's path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& path);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_LOAD_TOKENIZER_H_
