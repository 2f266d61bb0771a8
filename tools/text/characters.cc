#include "tools/text/characters.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "tools/text/character_tables.h"
#include "utf8proc.h"

namespace tessera::text {

namespace {

template <size_t n>
constexpr std::array<uint32_t, n> EdgesOf(const uint16_t (&gaps)[n]) {
  std::array<uint32_t, n> edges = {};
  uint32_t edge = 0;
  for (size_t i = 0; i < n; ++i) edges[i] = edge += gaps[i];
  return edges;
}
constexpr auto kLetterEdges = EdgesOf(internal::kLetterGaps);
constexpr auto kNumberEdges = EdgesOf(internal::kNumberGaps);

// True if the code point is in a run, that is, if an odd number of edges is at
// or below it.
bool Contains(std::span<const uint32_t> edges, uint32_t code_point) {
  return (std::ranges::upper_bound(edges, code_point) - edges.begin()) % 2 == 1;
}

// The property White_Space in PropList.txt, which is the same in all versions.
bool IsSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

CharacterClass Classify(uint32_t code_point) {
  if (IsSpace(code_point)) return CharacterClass::kSpace;
  if (Contains(kLetterEdges, code_point)) return CharacterClass::kLetter;
  if (Contains(kNumberEdges, code_point)) return CharacterClass::kNumber;
  return CharacterClass::kOther;
}

constexpr size_t kQuick = 0x3000;  // Below the ideographs.

const std::array<CharacterClass, kQuick>& QuickTable() {
  static const auto* const table = [] {
    auto* classes = new std::array<CharacterClass, kQuick>;
    for (uint32_t code = 0; code < kQuick; ++code) {
      (*classes)[code] = Classify(code);
    }
    return classes;
  }();
  return *table;
}

constexpr Character kMalformed = {0xFFFD, 1, CharacterClass::kOther, false};

constexpr bool WritesItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

// The number of bytes that are not written as themselves. They are written as
// the characters from U+0100 on.
constexpr uint32_t kShifted = 68;

// -1: none.
constexpr std::array<int, 0x100 + kShifted> kByteOf = [] {
  std::array<int, 0x100 + kShifted> bytes = {};
  bytes.fill(-1);
  size_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    bytes[WritesItself(byte) ? byte : next++] = static_cast<int>(byte);
  }
  return bytes;
}();

// Appends the composed form of well-formed UTF-8.
void AppendComposed(std::string_view text, std::string& composed) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &result,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) {  // Out of memory.
    composed += text;
    return;
  }
  composed.append(reinterpret_cast<const char*>(result),
                  static_cast<size_t>(length));
  std::free(result);
}

}  // namespace

CharacterClass ClassOf(uint32_t code_point) {
  return code_point < kQuick ? QuickTable()[code_point] : Classify(code_point);
}

Character CharacterAt(std::string_view text, size_t at) {
  const uint32_t first =
      at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
  if (first < 0x80) return {first, 1, ClassOf(first), true};
  utf8proc_int32_t decoded = 0;
  const utf8proc_ssize_t length = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
      static_cast<utf8proc_ssize_t>(text.size() - at), &decoded);
  if (length <= 0) return kMalformed;
  const auto code_point = static_cast<uint32_t>(decoded);
  return {code_point, static_cast<uint32_t>(length), ClassOf(code_point), true};
}

bool IsWordCharacter(const Character& character) {
  const uint32_t c = character.code_point;
  if (!character.valid) return false;
  if (character.kind == CharacterClass::kLetter) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  // Join_Control, and Other_Alphabetic of category So.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

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

std::string ComposedForm(std::string_view text) {
  const auto is_ascii = [](char c) {
    return static_cast<unsigned char>(c) < 0x80;
  };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text);
  std::string composed;
  composed.reserve(text.size());
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    if (!character.valid) {
      AppendComposed(text.substr(begin, at - begin), composed);
      composed += text[at];
      begin = at + 1;
    }
    at += character.length;
  }
  AppendComposed(text.substr(begin), composed);
  return composed;
}

}  // namespace tessera::text
