// The printable characters that byte-level vocabularies write bytes with: "Ġ"
// for a space. Source: GPT-2's bytes_to_unicode.
#ifndef TESSERA_TOOLS_TEXT_BYTE_ALPHABET_H_
#define TESSERA_TOOLS_TEXT_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

// The bytes that `written` stands for; none where a character is not of the
// alphabet.
std::optional<std::string> BytesOfWritten(std::string_view written);

// The characters for `bytes`.
std::string WrittenBytes(std::string_view bytes);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_BYTE_ALPHABET_H_
