// The characters of UTF-8 text, their classes and their composed form, and the
// alphabet in which byte-level vocabularies write bytes.
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

// \p{L} and \p{N} (Unicode general categories), \s (property White_Space), and
// all other characters.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };

CharacterClass ClassOf(uint32_t code_point);

struct Character {
  uint32_t code_point = 0;
  uint32_t length = 0;  // Bytes.
  CharacterClass kind = CharacterClass::kOther;
  bool valid = true;
};

// The character that begins at byte `at` of `text`. A byte that does not begin
// a well-formed character (Unicode, table 3-7) is returned as one invalid
// character: U+FFFD, kOther, length 1.
Character CharacterAt(std::string_view text, size_t at);

// \w: letters, marks, decimal digits, connectors such as "_", and joiners.
bool IsWordCharacter(const Character& character);

// Converts the text to Unicode normalisation form C, canonical composition
// (Unicode Standard Annex 15), in utf8proc's version of Unicode. Leaves
// malformed bytes unchanged.
std::string ComposedForm(std::string_view text);

// Decodes bytes that are written in the printable alphabet of byte-level
// vocabularies, where for example "Ġ" stands for a space; nullopt if a
// character is not in the alphabet. Source: GPT-2's bytes_to_unicode.
std::optional<std::string> BytesOfWritten(std::string_view written);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_CHARACTERS_H_
