// CreateSentencePieceTokenizer: a tokenizer of a SentencePiece model, the
// tokenizer.model of Llama 1 and 2, Mistral 7B v0.1 and Gemma.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
//                            CreateSentencePieceTokenizer(bytes, "</s>"));
//   tokenizer->Encode("a dog");  // The ids of the sentencepiece package.
//
// SentencePiece's own library encodes and decodes, after SentencePieceModel has
// verified the model.
#ifndef TESSERA_TOOLS_TEXT_SENTENCEPIECE_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_SENTENCEPIECE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// The library takes some 150 bytes of memory for each byte of a text, and texts
// below 2 GiB. Longer texts than this are encoded in parts, which end between
// an ASCII letter and a space before another letter: no piece of the models
// above crosses such a place, so the ids are those of the whole text. A part
// without such a place ends between two characters; the ids there may differ.
inline constexpr int64_t kSentencePiecePartBytes = int64_t{64} << 10;

// `end_of_text` is the piece that ends a document; if it is empty, the model's
// own, or none if it has none. `part_bytes` is at least 16.
//
// Text that has no piece becomes bytes if the model has byte fallback, else its
// unknown piece. Bytes that are not UTF-8 count as U+FFFD. A control piece that
// is written out in a text, such as "</s>", is always text, and a user-defined
// piece is always one piece, as in SentencePiece: SpecialTokens has no effect.
//
// Decoding drops the space that encoding puts before a text, unless the text
// that is appended to has something already. Unknown pieces become " \u2047 ",
// control pieces nothing, bytes that are not UTF-8 U+FFFD.
//
// The errors of SentencePieceModel::Parse; InvalidArgument if `end_of_text` is
// not a piece; Unimplemented, with the package to install, if Tessera was built
// without the library.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateSentencePieceTokenizer(
    std::string_view model, std::string_view end_of_text,
    int64_t part_bytes = kSentencePiecePartBytes);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_SENTENCEPIECE_TOKENIZER_H_
