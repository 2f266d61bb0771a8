#include "tools/train/sample/printable_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace tessera::train {
namespace {

enum class Form { kWhole, kCutOff, kMalformed };

struct Utf8Bytes {
  Form form = Form::kMalformed;
  size_t length = 1;  // Of a whole one.
};

// What may follow a first byte (The Unicode Standard, table 3-7).
struct Follow {
  size_t length = 0;           // With the first byte; 0: it begins nothing.
  unsigned char least = 0x80;  // Of the second byte.
  unsigned char most = 0xBF;
};

Follow FollowOf(unsigned char first) {
  if (first < 0x80) return {.length = 1};
  if (first < 0xC2) return {};
  if (first < 0xE0) return {.length = 2};
  if (first == 0xE0) return {.length = 3, .least = 0xA0};
  if (first == 0xED) return {.length = 3, .most = 0x9F};
  if (first < 0xF0) return {.length = 3};
  if (first == 0xF0) return {.length = 4, .least = 0x90};
  if (first < 0xF4) return {.length = 4};
  if (first == 0xF4) return {.length = 4, .most = 0x8F};
  return {};
}

// The character that `text`, which is not empty, begins with.
Utf8Bytes FirstCharacter(std::string_view text) {
  const Follow follow = FollowOf(static_cast<unsigned char>(text[0]));
  if (follow.length == 0) return {};
  for (size_t i = 1; i < follow.length; ++i) {
    if (i == text.size()) return {.form = Form::kCutOff};
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool fits = i == 1 ? follow.least <= byte && byte <= follow.most
                             : 0x80 <= byte && byte <= 0xBF;
    if (!fits) return {};
  }
  return {.form = Form::kWhole, .length = follow.length};
}

// C0 but line ends and tabs, DEL, and C1: U+0080 to U+009F.
bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character == "\n" || character == "\t") return false;
  return first < 0x20 || first == 0x7F ||
         (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
}

}  // namespace

std::string PrintableText(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Utf8Bytes bytes = FirstCharacter(text);
    if (bytes.form == Form::kCutOff) break;
    const std::string_view character = text.substr(0, bytes.length);
    if (bytes.form == Form::kWhole && !IsControl(character)) {
      result += character;
    } else {
      for (const char c : character) {
        absl::StrAppendFormat(&result, "\\x%02x",
                              static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(character.size());
  }
  return result;
}

}  // namespace tessera::train
