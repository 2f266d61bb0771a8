// Verification of serialized SentencePiece models.
//
//   TESSERA_ASSIGN_OR_RETURN(const SentencePieceModel model,
//                            SentencePieceModel::Parse(bytes));
//
// SentencePiece's library trusts its files: a damaged one makes it read out of
// bounds or loop forever. Parse checks everything that the library relies on,
// and does not need the library itself.
//
// Source: sentencepiece_model.proto, version 0.1.97 of SentencePiece.
#ifndef TESSERA_TOOLS_TEXT_SENTENCEPIECE_MODEL_H_
#define TESSERA_TOOLS_TEXT_SENTENCEPIECE_MODEL_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::text {

struct SentencePieceModel {
  // The ModelProto without its self_test_data.
  std::string serialized;
  // Encoding adds a space before each text.
  bool add_dummy_prefix = true;

  // `bytes` is a serialized ModelProto of at most 2^31 - 1 bytes, of type
  // unigram or BPE. InvalidArgument for a malformed model, Unimplemented for
  // other types and for `treat_whitespace_as_suffix`; the message names the
  // field.
  static absl::StatusOr<SentencePieceModel> Parse(std::string_view bytes);
};

// InvalidArgument with `what` and the kind of file that is expected.
absl::Status MalformedSentencePieceModel(std::string_view what);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_SENTENCEPIECE_MODEL_H_
