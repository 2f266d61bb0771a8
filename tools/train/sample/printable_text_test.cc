#include <cstdint>
#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tools/train/sample/generate.h"

namespace tessera::train {
namespace {

// By definition, without a table of ranges.
std::string Encode(uint32_t c) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) {
    return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)),
            byte(0x80 | (c & 0x3F))};
  }
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)),
          byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
}

bool IsControl(uint32_t c) {
  return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0);
}

// Every proper prefix of every character; characters that differ only in the
// last byte share prefixes.
const std::set<std::string>& Beginnings() {
  static const auto* const beginnings = [] {
    auto* all = new std::set<std::string>;
    for (uint32_t c = 0x80; c < 0x110000; c += 0x40) {
      if (c >= 0xD800 && c < 0xE000) continue;
      const std::string bytes = Encode(c);
      for (size_t n = 1; n < bytes.size(); ++n) all->insert(bytes.substr(0, n));
    }
    return all;
  }();
  return *beginnings;
}

TEST(PrintableTextTest, EscapesOnlyControlCharacters) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const std::string bytes = Encode(c);
    const bool is_surrogate = c >= 0xD800 && c < 0xE000;
    const std::string shown = PrintableText("a" + bytes + "b");
    if (is_surrogate || IsControl(c)) {
      ASSERT_EQ(shown.size(), 2 + 4 * bytes.size()) << c;
    } else {
      ASSERT_EQ(shown, "a" + bytes + "b") << c;
    }
  }
}

TEST(PrintableTextTest, OmitsTruncatedCharacter) {
  EXPECT_EQ(PrintableText("caf\xc3"), "caf");
  EXPECT_EQ(PrintableText("\xf0\x9f\x98"), "");
  for (int a = 0x80; a < 0x100; ++a) {
    const std::string one(1, static_cast<char>(a));
    ASSERT_EQ(PrintableText("x" + one) == "x", Beginnings().contains(one));
    for (int b = 0; b < 0x100; ++b) {
      const std::string two = one + static_cast<char>(b);
      ASSERT_EQ(PrintableText("x" + two) == "x", Beginnings().contains(two));
    }
  }
}

TEST(PrintableTextTest, EscapesControlAndInvalidBytes) {
  EXPECT_EQ(PrintableText(""), "");
  EXPECT_EQ(PrintableText("a\n\tb"), "a\n\tb");
  EXPECT_EQ(PrintableText("\x1b[31m\r\x7f"), "\\x1b[31m\\x0d\\x7f");
  EXPECT_EQ(PrintableText(std::string(1, '\0')), "\\x00");
  EXPECT_EQ(PrintableText("\xc3("), "\\xc3(");
  EXPECT_EQ(PrintableText("\xe2\x82z"), "\\xe2\\x82z");
  EXPECT_EQ(PrintableText("\xc0\x80\xff"), "\\xc0\\x80\\xff");
  EXPECT_EQ(PrintableText("\xc2\x9b"), "\\xc2\\x9b");
}

TEST(PrintableTextTest, IsUtf8ForAnyBytes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random() % 12, ' ');
    for (char& c : text)
      c = static_cast<char>(random() >> 11 | 0x80 * (random() % 2));
    const std::string shown = PrintableText(text);
    // Printable text is unchanged.
    ASSERT_EQ(PrintableText(shown), shown);
  }
}

}  // namespace
}  // namespace tessera::train
