// Tokenizers for SentencePiece models, such as the tokenizer.model of Llama 1
// and 2, Mistral 7B v0.1 and Gemma.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
//                            CreateSentencePieceTokenizer(bytes, "</s>"));
//   tokenizer->Encode("a dog");  // The ids of the sentencepiece package.
//
// SentencePieceModel verifies the model; SentencePiece's own library then
// encodes and decodes.
#ifndef TESSERA_TOOLS_TEXT_SENTENCEPIECE_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_SENTENCEPIECE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// The library needs some 150 bytes of memory for each byte of a text, and only
// accepts texts below 2 GiB. Texts longer than this constant are therefore
// encoded in parts. A part ends between an ASCII letter and a space that
// another letter follows. No piece of the models above crosses such a position,
// so the ids equal those of the whole text. If there is no such position, the
// part ends between two characters, where the ids may differ.
inline constexpr int64_t kSentencePiecePartBytes = int64_t{64} << 10;

// `end_of_text` is the piece that ends a document; if it is empty, the model's
// own end of text is used, if it has one. `part_bytes` is at least 16.
//
// Text without a piece is encoded as bytes if the model has byte fallback,
// otherwise as the unknown piece. Bytes that are not UTF-8 are treated as
// U+FFFD. Special tokens are the control pieces, such as "</s>", and the
// unknown piece; text behind them has no dummy prefix. As in SentencePiece, a
// user-defined piece that is written out in a text is always encoded as one
// piece.
//
// Decoding drops the space that encoding adds before a text, unless it appends
// to a text that is not empty. Unknown pieces decode to " \u2047 ", control
// pieces to nothing, and bytes that are not UTF-8 to U+FFFD.
//
// Returns the errors of SentencePieceModel::Parse; InvalidArgument if
// `end_of_text` is not a piece; Unimplemented, with the package to install, if
// Tessera was built without the library.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateSentencePieceTokenizer(
    std::string_view model, std::string_view end_of_text,
    int64_t part_bytes = kSentencePiecePartBytes);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_SENTENCEPIECE_TOKENIZER_H_
