// Characters of UTF-8 text and what kind they are.
//
//   for (size_t at = 0; at < text.size();) {
//     const Character character = CharacterAt(text, at);
//     at += character.length;
//   }
#ifndef TESSERA_TOOLS_TEXT_CHARACTERS_H_
#define TESSERA_TOOLS_TEXT_CHARACTERS_H_

#include <cstddef>
#include <cstdint>
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
// begins no well-formed character (Unicode, table 3-7) is one of its own: not
// valid, U+FFFD, kOther, one byte.
Character CharacterAt(std::string_view text, size_t at);

// In UTF-8. `code_point` is below 0x110000 and no surrogate.
void AppendUtf8(uint32_t code_point, std::string& text);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_CHARACTERS_H_
