#include "tools/text/sentencepiece_model.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "tools/text/testing/sentencepiece_test_models.h"

namespace tessera::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status StatusOf(std::string_view model) {
  return SentencePieceModel::Parse(model).status();
}

std::string ReadTestdata(std::string_view name) {
  return *ReadFile(absl::StrCat("tools/text/testdata/", name), 1 << 20);
}

template <typename... Words>
auto Refused(Words... words) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(words)...));
}

TEST(SentencePieceModelTest, KeepsEverythingButSelfTestData) {
  const std::string plain = Model(Piece("ab"), NumberField(3, 0));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const SentencePieceModel model,
      SentencePieceModel::Parse(BytesField(4, "x") + plain +
                                BytesField(200, "extension")));
  EXPECT_EQ(model.serialized, plain + BytesField(200, "extension"));
  EXPECT_FALSE(model.add_dummy_prefix);
  TESSERA_ASSERT_OK_AND_ASSIGN(const SentencePieceModel other,
                               SentencePieceModel::Parse(Model("")));
  EXPECT_TRUE(other.add_dummy_prefix);
}

TEST(SentencePieceModelTest, RejectsMalformedModelsAndNamesTheField) {
  TESSERA_EXPECT_OK(StatusOf(Model("")));
  EXPECT_THAT(StatusOf(""), Refused("no pieces", "expected a SentencePiece"));
  EXPECT_THAT(StatusOf("\x0a"), Refused("has 1 bytes, and only 0 are left"));
  EXPECT_THAT(StatusOf(std::string(20, '\xff')), Refused("more than 10 bytes"));
  EXPECT_THAT(StatusOf(Model("\x0b")), Refused("wire type 3"));
  EXPECT_THAT(StatusOf(Model("") + NumberField(3, 1)),
              Refused("normalizer_spec has wire type 0; it must be 2"));
  EXPECT_THAT(StatusOf(Piece("a")), Refused("no trainer_spec", "truncated"));
  EXPECT_THAT(StatusOf(Piece("a") + BytesField(2, "")),
              Refused("no normalizer_spec", "truncated"));
  EXPECT_THAT(StatusOf(Model("") + BytesField(3, "")),
              Refused("normalizer_spec is there twice"));
}

TEST(SentencePieceModelTest, RejectsMalformedPiecesAndNamesThem) {
  EXPECT_THAT(StatusOf(Model(Piece(""))), Refused("piece 3", "0 bytes"));
  EXPECT_THAT(StatusOf(Model(Piece(std::string(1001, 'x')))),
              Refused("piece 3", "1001 bytes"));
  EXPECT_THAT(StatusOf(Model(Piece("\xff"))), Refused("\\xff", "UTF-8"));
  EXPECT_THAT(StatusOf(Model(Piece(std::string("a\0b", 3)))),
              Refused("without zeros"));
  EXPECT_THAT(StatusOf(Model(Piece("a"))), Refused("\"a\" is there twice"));
  EXPECT_THAT(StatusOf(Model(Piece("c", kControl))),
              Refused("control piece \"c\""));
  EXPECT_THAT(StatusOf(Model(Piece("c", 7))),
              Refused("piece 3: its type is 7"));
  EXPECT_THAT(StatusOf(Model(Piece("c", kNormal,
                                   std::numeric_limits<float>::quiet_NaN()))),
              Refused("piece 3: its score is nan"));
  std::string nested;
  for (size_t i = 1; i <= 64; ++i) {
    nested += Piece(std::string(i, 'n'), kUserDefined);
  }
  TESSERA_EXPECT_OK(StatusOf(Model(nested)));
  nested += Piece(std::string(65, 'n'), kUserDefined);
  EXPECT_THAT(StatusOf(Model(nested)), Refused("more than 64 user-defined"));
}

TEST(SentencePieceModelTest, UnsupportedKindsAreUnimplemented) {
  const auto unimplemented = [](auto word) {
    return StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(word));
  };
  EXPECT_THAT(StatusOf(Model("", "", NumberField(3, 4))),
              unimplemented("model_type: 4 is not supported"));
  EXPECT_THAT(StatusOf(Model("", "", NumberField(24, 1))),
              unimplemented("treat_whitespace_as_suffix"));
}

// A precompiled_charsmap: a declared trie size of `size` bytes, the trie
// `units`, and the texts of its rules.
std::string Map(uint32_t size, const std::vector<uint32_t>& units,
                std::string_view texts) {
  return absl::StrCat(Little({size}), Little(units), texts);
}

std::string MapOf(const std::vector<uint32_t>& units, std::string_view texts) {
  return Map(static_cast<uint32_t>(units.size() * 4), units, texts);
}

absl::Status StatusOfMap(std::string_view map) {
  return StatusOf(Model("", BytesField(2, map)));
}

auto RefusedMap(std::string_view word) {
  return Refused("normalizer_spec: precompiled_charsmap", std::string(word));
}

// Units of Darts-clone.
constexpr uint32_t kLeaf = 1u << 8;
constexpr uint32_t kValue = 1u << 31;
constexpr uint32_t kUnused = kValue;  // No label equals it.
constexpr std::string_view kTexts("y\0zz\0", 5);

// A trie that replaces "x" by the text at byte 2. The root's children are at
// 256, and those of 'x' at 512.
std::vector<uint32_t> OneRule() {
  std::vector<uint32_t> units(1024, kUnused);
  units[0] = 256u << 10;
  units[256 ^ 'x'] = (256u ^ 'x' ^ 512u) << 10 | kLeaf | 'x';
  units[512] = kValue | 2;
  return units;
}

TEST(SentencePieceModelTest, RejectsMalformedCharacterMaps) {
  const std::vector<uint32_t> units = OneRule();
  TESSERA_EXPECT_OK(StatusOfMap(MapOf(units, kTexts)));
  EXPECT_THAT(StatusOfMap(Map(0, {}, kTexts)), RefusedMap("a trie of 0 bytes"));
  EXPECT_THAT(StatusOfMap(Map(4095, units, kTexts)),
              RefusedMap("a trie of 4095 bytes"));
  EXPECT_THAT(StatusOfMap(Map(5000, units, kTexts)),
              RefusedMap("a trie of 5000 bytes"));
  EXPECT_THAT(StatusOfMap(MapOf(units, "yyy")), RefusedMap("ends with a zero"));
  EXPECT_THAT(StatusOfMap(MapOf(units, std::string_view("\xff\0\0\0", 4))),
              RefusedMap("UTF-8"));
  std::vector<uint32_t> wrong = units;
  wrong[512] = kValue | 5;
  EXPECT_THAT(StatusOfMap(MapOf(wrong, kTexts)),
              RefusedMap("refers to byte 5"));
  wrong = units;
  wrong[256 ^ 'x'] = (256u ^ 'x' ^ 1024u) << 10 | 'x';
  EXPECT_THAT(StatusOfMap(MapOf(wrong, kTexts)),
              RefusedMap("refers to 1024 of 1024"));
  wrong[256 ^ 'x'] = (256u ^ 'x' ^ 256u) << 10 | 'x';
  EXPECT_THAT(StatusOfMap(MapOf(wrong, kTexts)), RefusedMap("has a loop"));
}

// Rules for "x", "xx", ..., with a separate block of units for the children of
// each node.
TEST(SentencePieceModelTest, RejectsMoreRulesThanLibraryKeeps) {
  const auto chain = [](uint32_t rules) {
    std::vector<uint32_t> units(256 * (rules + 2), kUnused);
    units[0] = 256u << 10;
    for (uint32_t i = 1; i <= rules; ++i) {
      const uint32_t node = (256 * i) ^ 'x';
      units[node] = (node ^ (256 * (i + 1))) << 10 | kLeaf | 'x';
      units[256 * (i + 1)] = kValue;
    }
    return MapOf(units, kTexts);
  };
  TESSERA_EXPECT_OK(StatusOfMap(chain(32)));
  EXPECT_THAT(StatusOfMap(chain(33)), RefusedMap("more than 32 rules"));
}

// Pieces come first: if the fields after them were not required, a file
// truncated between two pieces would be a valid model with a smaller
// vocabulary.
TEST(SentencePieceModelTest, RejectsEveryTruncation) {
  for (const char* name : {"gemma.model", "llama.model", "unigram.model"}) {
    const std::string whole = ReadTestdata(name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const SentencePieceModel model,
                                 SentencePieceModel::Parse(whole));
    for (size_t size = 0; size < whole.size(); ++size) {
      const auto part = SentencePieceModel::Parse(whole.substr(0, size));
      // An empty denormalizer_spec may be at the end.
      ASSERT_TRUE(!part.ok() || size + 2 >= whole.size())
          << name << ", " << size;
    }
  }
}

TEST(SentencePieceModelFuzzTest, DamagedModelsAreParsedOrRejectedInOneLine) {
  const std::string small =
      Model(Piece("ab") + Piece("<u>", kUserDefined) + Piece("</s>", kControl),
            absl::StrCat(BytesField(2, MapOf(OneRule(), kTexts)),
                         NumberField(3, 1), NumberField(4, 0)));
  TESSERA_ASSERT_OK(StatusOf(small));
  TextMutator mutator(
      {small, Model(Piece("ab")), ReadTestdata("unigram.model"),
       ReadTestdata("llama.model")},
      {Piece("</s>"), NumberField(3, 1), FloatField(2, 1e38f),
       BytesField(4, "self"), std::string(10, '\xff'), std::string(8, '\0')},
      9);
  int valid = 0;
  for (int round = 0; round < 50'000; ++round) {
    const absl::Status status = StatusOf(mutator.Next());
    if (status.ok()) {
      ++valid;
      continue;
    }
    ASSERT_TRUE(absl::IsInvalidArgument(status) ||
                absl::IsUnimplemented(status));
    ASSERT_FALSE(status.message().empty());
    ASSERT_LT(status.message().size(), 2000u);
    ASSERT_EQ(status.message().find('\n'), std::string_view::npos);
  }
  EXPECT_GT(valid, 5000);
}

}  // namespace
}  // namespace tessera::text
