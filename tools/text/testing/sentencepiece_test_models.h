// Builds serialized SentencePiece models field by field, for tests.
//
//   Model(Piece("ab", kNormal, -1) + Piece("<u>", kUserDefined))
#ifndef TESSERA_TOOLS_TEXT_TESTING_SENTENCEPIECE_TEST_MODELS_H_
#define TESSERA_TOOLS_TEXT_TESTING_SENTENCEPIECE_TEST_MODELS_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::text {

// Parts of a protocol buffer: varints, fields, and 32-bit little-endian numbers
// without a key.
inline std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}
inline std::string NumberField(uint64_t number, uint64_t value) {
  return Varint(number << 3) + Varint(value);
}
inline std::string BytesField(uint64_t number, std::string_view bytes) {
  return absl::StrCat(Varint(number << 3 | 2), Varint(bytes.size()), bytes);
}
inline std::string FloatField(uint64_t number, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return Varint(number << 3 | 5) + bytes;
}
inline std::string Little(std::vector<uint32_t> units) {
  std::string bytes(units.size() * 4, '\0');
  if (!units.empty()) std::memcpy(bytes.data(), units.data(), bytes.size());
  return bytes;
}

// The types of pieces.
enum Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

inline std::string Piece(std::string_view text, int type = kNormal,
                         float score = 0) {
  return BytesField(1,
                    absl::StrCat(BytesField(1, text), FloatField(2, score),
                                 NumberField(3, static_cast<uint64_t>(type))));
}

// A BPE model with the pieces <unk>, "a", "b" and `pieces`; `normalizer` and
// `trainer` are further fields of these messages.
inline std::string Model(std::string_view pieces,
                         std::string_view normalizer = "",
                         std::string_view trainer = "") {
  return absl::StrCat(Piece("<unk>", kUnknown), Piece("a"), Piece("b"), pieces,
                      BytesField(2, absl::StrCat(NumberField(3, 2), trainer)),
                      BytesField(3, normalizer));
}

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TESTING_SENTENCEPIECE_TEST_MODELS_H_
