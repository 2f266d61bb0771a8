// Characters of UTF-8 text, their classes and composition; the byte alphabet of
// byte-level vocabularies.
//
//   for (size_t at = 0; at < text.size();) {
//     const Character character = CharacterAt(text, at);
//     at += character.length;
//   }
#ifndef TESSERA_TOOLS_TEXT_CHARACTERS_H_
#define TESSERA_TOOLS_TEXT_CHARACTERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

// \p{L}, \p{N} (Unicode general categories), \s (property White_Space), and
// the rest.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };

CharacterClass ClassOf(uint32_t code_point);

struct Character {
  uint32_t code_point = 0;
  uint32_t length = 0;  // Bytes.
  CharacterClass kind = CharacterClass::kOther;
  bool valid = true;
};

// The character that begins at byte `at`, which is inside `text`. A byte that
// does not begin a well-formed character (Unicode, table 3-7) is a character of
// one byte: not valid, U+FFFD, kOther.
Character CharacterAt(std::string_view text, size_t at);

// Appends UTF-8. `code_point` is below 0x110000 and no surrogate.
void AppendUtf8(uint32_t code_point, std::string& text);

// The text in Unicode normalisation form C, canonical composition (Unicode
// Standard Annex 15), of utf8proc's version of Unicode. Bytes that are no
// well-formed characters stay where they are.
std::string ComposedForm(std::string_view text);

// The bytes of `written` in the printable characters of byte-level
// vocabularies, such as "Ġ" for a space; nothing if a character is not in that
// alphabet. Source: GPT-2's bytes_to_unicode.
std::optional<std::string> BytesOfWritten(std::string_view written);

// The inverse.
std::string WrittenBytes(std::string_view bytes);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_CHARACTERS_H_
