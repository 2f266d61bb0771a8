#include "tools/text/characters.h"

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "utf8proc.h"

namespace tessera::text {
namespace {

TEST(CharactersTest, ClassSizesMatchUnicode16) {
  std::map<CharacterClass, int> counts;
  for (uint32_t code = 0; code < 0x110000; ++code) ++counts[ClassOf(code)];
  // Counts from DerivedGeneralCategory-16.0.0 (L and N) and PropList
  // (White_Space).
  EXPECT_EQ(counts[CharacterClass::kLetter], 141028);
  EXPECT_EQ(counts[CharacterClass::kNumber], 1911);
  EXPECT_EQ(counts[CharacterClass::kSpace], 25);
}

TEST(CharactersTest, ClassifiesManyScripts) {
  for (const uint32_t letter :
       {0x41u, 0x7Au, 0xAAu, 0xB5u, 0xDFu, 0x3B1u, 0x416u, 0x5D0u, 0x627u,
        0x905u, 0x4E00u, 0x9FFFu, 0xAC00u, 0xD7A3u, 0x20000u, 0x323AFu}) {
    EXPECT_EQ(ClassOf(letter), CharacterClass::kLetter) << letter;
  }
  for (const uint32_t number :
       {0x30u, 0x39u, 0xB2u, 0xBDu, 0x660u, 0x2160u, 0x3007u, 0x1D7FFu}) {
    EXPECT_EQ(ClassOf(number), CharacterClass::kNumber) << number;
  }
  for (const uint32_t space : {0x9u, 0xAu, 0x20u, 0x85u, 0xA0u, 0x3000u}) {
    EXPECT_EQ(ClassOf(space), CharacterClass::kSpace) << space;
  }
  // Includes a combining accent, a zero-width joiner, an emoji, a surrogate.
  for (const uint32_t other : {0x0u, 0x21u, 0x5Fu, 0x301u, 0x200Bu, 0x200Du,
                               0x1F600u, 0xD800u, 0xFFFDu, 0x10FFFFu}) {
    EXPECT_EQ(ClassOf(other), CharacterClass::kOther) << other;
  }
}

TEST(CharactersTest, EveryCodePointReadsBack) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text(4, 0);
    text.resize(static_cast<size_t>(utf8proc_encode_char(
        static_cast<utf8proc_int32_t>(code),
        reinterpret_cast<utf8proc_uint8_t*>(text.data()))));
    const Character character = CharacterAt(text, 0);
    ASSERT_TRUE(character.valid);
    ASSERT_EQ(character.code_point, code);
    ASSERT_EQ(character.length, text.size());
    ASSERT_EQ(character.kind, ClassOf(code));
    // A truncated character is invalid.
    text.pop_back();
    if (!text.empty()) {
      ASSERT_FALSE(CharacterAt(text, 0).valid);
    }
  }
}

TEST(CharactersTest, InvalidByteStandsAlone) {
  for (const std::string text :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
        "\xC3", "\xC3x", "\xE2\x82x"}) {
    const Character character = CharacterAt(text, 0);
    EXPECT_FALSE(character.valid);
    EXPECT_EQ(character.code_point, 0xFFFDu);
    EXPECT_EQ(character.length, 1u);
    EXPECT_EQ(character.kind, CharacterClass::kOther);
  }
  EXPECT_EQ(CharacterAt("a\xC3\xA9", 1).code_point, 0xE9u);
}

// Unicode Standard Annex 15, figures 3 to 6.
TEST(ComposedFormTest, ComposesCanonically) {
  EXPECT_EQ(ComposedForm(""), "");
  EXPECT_EQ(ComposedForm("plain text\n\x01"), "plain text\n\x01");
  EXPECT_EQ(ComposedForm("e\u0301"), "\u00e9");
  EXPECT_EQ(ComposedForm("\u212b \u2126"), "\u00c5 \u03a9");
  EXPECT_EQ(ComposedForm("s\u0323\u0307 s\u0307\u0323"), "\u1e69 \u1e69");
  EXPECT_EQ(ComposedForm("\u1112\u1161\u11ab"), "\ud55c");
  // Not composed, by the standard's list of exceptions; compatibility stays.
  EXPECT_EQ(ComposedForm("\u0958 \ufb01"), "\u0915\u093c \ufb01");
}

TEST(ComposedFormTest, KeepsInvalidBytes) {
  const std::string nothing = "\xff";
  EXPECT_EQ(ComposedForm("e\u0301" + nothing + "e\u0301"),
            "\u00e9" + nothing + "\u00e9");
  EXPECT_EQ(ComposedForm("e" + nothing + "\u0301"), "e" + nothing + "\u0301");
  const std::string zeros("a\0\xcc\x81\0", 5);
  EXPECT_EQ(ComposedForm(zeros), zeros);
  EXPECT_EQ(ComposedForm("\xe2\x82"), "\xe2\x82");
}

}  // namespace
}  // namespace tessera::text
