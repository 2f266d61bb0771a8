#include "tools/text/sentencepiece_tokenizer.h"

#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "sentencepiece_processor.h"
#include "tools/text/bpe_tokenizer.h"
#include "tools/text/sentencepiece_model.h"

namespace tessera::text {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr int64_t kMinPartBytes = 16;

bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The end of the first part of a text that is encoded in parts.
struct PartEnd {
  size_t at = 0;
  // A space follows, which the dummy prefix of the next part replaces.
  bool before_space = false;
};

PartEnd FindPartEnd(std::string_view text, size_t most) {
  for (size_t at = most; at > 1; --at) {
    if (text[at] == ' ' && IsLetter(text[at - 1]) && at + 1 < text.size() &&
        IsLetter(text[at + 1])) {
      return {at, true};
    }
  }
  // A part must not begin or end with a space: some models drop spaces there.
  constexpr size_t kTries = 12;
  for (size_t at = most; at > most - kTries; --at) {
    if (!IsContinuation(text[at]) && text[at] != ' ' && text[at - 1] != ' ') {
      return {at, false};
    }
  }
  return {most, false};
}

absl::Status Load(std::string_view serialized,
                  SentencePieceProcessor& processor) {
  try {
    const auto status = processor.LoadFromSerializedProto(serialized);
    return status.ok() ? absl::OkStatus()
                       : MalformedSentencePieceModel(status.message());
  } catch (const std::exception& error) {
    return MalformedSentencePieceModel(error.what());
  }
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, int64_t part_bytes)
      : model_(std::move(model)),
        part_bytes_(static_cast<size_t>(part_bytes)) {}

  // Must be the first call.
  absl::Status Initialize(std::string_view end_of_text) {
    TESSERA_RETURN_IF_ERROR(Load(model_.serialized, own_));
    std::vector<AddedToken> special;
    for (int id = 0; id < own_.GetPieceSize(); ++id) {
      if (own_.IsUnknown(id)) unknown_ = id;  // The library requires one.
      if (own_.IsControl(id) || own_.IsUnknown(id)) {
        special.push_back({id, own_.IdToPiece(id)});
      }
    }
    special_ = AddedTokens(std::move(special));
    unknown_text_ = own_.DecodeIds(std::vector<int>{unknown_});
    if (end_of_text.empty()) {
      if (own_.eos_id() >= 0) end_of_text_ = own_.eos_id();
      return absl::OkStatus();
    }
    const int id = own_.PieceToId(end_of_text);
    if (own_.IdToPiece(id) != end_of_text) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the end of text, ", Quoted(end_of_text), ", is no piece"));
    }
    end_of_text_ = id;
    return absl::OkStatus();
  }

  int64_t vocabulary_size() const override { return own_.GetPieceSize(); }
  std::optional<TokenId> end_of_text() const override { return end_of_text_; }

  void AppendTokens(std::string_view text, SpecialTokens special,
                    std::vector<TokenId>& ids) const override {
    if (special == SpecialTokens::kAsText) return AppendPieces(text, own_, ids);
    // Only the text before the first special token has a dummy prefix.
    for (size_t at = 0; at < text.size();) {
      const AddedTokens::Match match = special_.Find(text, at, true);
      AppendPieces(text.substr(at, match.begin - at),
                   at == 0 ? own_ : WithPrefix(false), ids);
      if (match.token == nullptr) return;
      ids.push_back(match.token->id);
      at = match.begin + match.token->content.size();
    }
  }

  void AppendText(std::span<const TokenId> ids,
                  std::string& text) const override {
    // Decoding keeps the space before a text only after another piece. So an
    // unknown piece is put first, and its text is dropped from the result.
    const bool continues = !text.empty();
    std::vector<int> known;
    if (continues) known.push_back(unknown_);
    for (const TokenId id : ids) {
      if (id >= 0 && id < own_.GetPieceSize()) known.push_back(id);
    }
    const std::string decoded = own_.DecodeIds(known);
    const bool has_unknown =
        continues && absl::StartsWith(decoded, unknown_text_);
    text.append(decoded, has_unknown ? unknown_text_.size() : 0);
  }

 private:
  void AppendPieces(std::string_view text, const SentencePieceProcessor& first,
                    std::vector<TokenId>& ids) const {
    const SentencePieceProcessor* processor = &first;
    while (!text.empty()) {
      PartEnd end = {text.size(), false};
      if (text.size() > part_bytes_) end = FindPartEnd(text, part_bytes_);
      const std::vector<int> part =
          processor->EncodeAsIds(text.substr(0, end.at));
      ids.insert(ids.end(), part.begin(), part.end());
      text.remove_prefix(end.at + (end.before_space ? 1 : 0));
      if (!text.empty()) processor = &WithPrefix(end.before_space);
    }
  }

  // The processor that does or does not add a space before texts. The processor
  // that differs from the model is loaded when first needed.
  const SentencePieceProcessor& WithPrefix(bool space) const {
    if (space == model_.add_dummy_prefix) return own_;
    std::call_once(once_, [&] {
      // Fields at the end of a message replace earlier ones: this is
      // normalizer_spec { add_dummy_prefix: `space` }.
      const std::string field = {'\x1a', '\x02', '\x18',
                                 static_cast<char>(space ? 1 : 0)};
      is_other_loaded_ =
          Load(absl::StrCat(model_.serialized, field), other_).ok();
    });
    // Loading fails only when memory is exhausted. Then the model's own
    // processor encodes the text with one space more or less.
    return is_other_loaded_ ? other_ : own_;
  }

  const SentencePieceModel model_;
  const size_t part_bytes_;
  SentencePieceProcessor own_;
  std::optional<TokenId> end_of_text_;
  AddedTokens special_;       // Control and unknown pieces.
  int unknown_ = 0;           // The id of the unknown piece.
  std::string unknown_text_;  // Its decoded text.
  mutable std::once_flag once_;
  mutable SentencePieceProcessor other_;
  mutable bool is_other_loaded_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateSentencePieceTokenizer(
    std::string_view model, std::string_view end_of_text, int64_t part_bytes) {
  if (part_bytes < kMinPartBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parts of ", part_bytes, " bytes; give at least ", kMinPartBytes));
  }
  TESSERA_ASSIGN_OR_RETURN(SentencePieceModel verified,
                           SentencePieceModel::Parse(model));
  auto tokenizer =
      std::make_unique<SentencePieceTokenizer>(std::move(verified), part_bytes);
  TESSERA_RETURN_IF_ERROR(tokenizer->Initialize(end_of_text));
  return tokenizer;
}

}  // namespace tessera::text
