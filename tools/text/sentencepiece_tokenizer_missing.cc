#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tools/text/sentencepiece_model.h"
#include "tools/text/sentencepiece_tokenizer.h"

namespace tessera::text {

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateSentencePieceTokenizer(
    std::string_view model, std::string_view /*end_of_text*/,
    int64_t /*part_bytes*/) {
  TESSERA_RETURN_IF_ERROR(SentencePieceModel::Parse(model).status());
  return absl::UnimplementedError(
      "a SentencePiece model, and Tessera was built without SentencePiece: "
      "install libsentencepiece-dev and build again, or give a tokenizer.json");
}

}  // namespace tessera::text
