#include "tools/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "tools/text/characters.h"

namespace tessera::text {
namespace {

constexpr bool WritesItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

// The bytes that do not write themselves have the characters from U+0100 on.
constexpr uint32_t kShifted = 68;

constexpr std::array<uint32_t, 256> kCharacterOf = [] {
  std::array<uint32_t, 256> characters = {};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    characters[byte] = WritesItself(byte) ? byte : next++;
  }
  return characters;
}();

// -1: none.
constexpr std::array<int, 0x100 + kShifted> kByteOf = [] {
  std::array<int, 0x100 + kShifted> bytes = {};
  for (int& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) {
    bytes[kCharacterOf[static_cast<size_t>(byte)]] = byte;
  }
  return bytes;
}();

}  // namespace

std::optional<std::string> BytesOfWritten(std::string_view written) {
  std::string bytes;
  for (size_t at = 0; at < written.size();) {
    const Character character = CharacterAt(written, at);
    if (!character.valid || character.code_point >= kByteOf.size() ||
        kByteOf[character.code_point] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kByteOf[character.code_point]);
    at += character.length;
  }
  return bytes;
}

std::string WrittenBytes(std::string_view bytes) {
  std::string written;
  for (const char c : bytes) {
    AppendUtf8(kCharacterOf[static_cast<unsigned char>(c)], written);
  }
  return written;
}

}  // namespace tessera::text
