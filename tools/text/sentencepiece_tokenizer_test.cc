#include "tools/text/sentencepiece_tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/text/load_tokenizer.h"
#include "tools/text/testing/sentencepiece_test_models.h"

namespace tessera::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string ReadTestdata(std::string_view name) {
  return *ReadFile(absl::StrCat("tools/text/testdata/", name), 1 << 20);
}

const Json& Golden() {
  static const auto* const golden =
      new Json(Json::parse(ReadTestdata("sentencepiece_golden.json")));
  return *golden;
}

absl::Status StatusOf(std::string_view model) {
  return CreateSentencePieceTokenizer(model, "").status();
}

TEST(SentencePieceTokenizerTest, MatchesReferencePackage) {
  const std::vector<std::string> texts = Golden()["texts"];
  ASSERT_GT(texts.size(), 50u);
  ASSERT_EQ(Golden()["models"].size(), 3u);
  for (const auto& [name, expected] : Golden()["models"].items()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<Tokenizer> tokenizer,
        CreateSentencePieceTokenizer(ReadTestdata(name), ""));
    EXPECT_EQ(tokenizer->vocabulary_size(), expected["vocabulary"]);
    EXPECT_EQ(tokenizer->end_of_text(), expected["end_of_text"].get<int>());
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> ids = expected["ids"][i];
      EXPECT_EQ(tokenizer->Encode(texts[i]), ids) << name << ": " << texts[i];
      EXPECT_EQ(tokenizer->Decode(ids),
                expected["decoded"][i].get<std::string>())
          << name << ": " << texts[i];
    }
  }
}

TEST(SentencePieceTokenizerTest, LongTextsHaveSameIdsInParts) {
  std::string text;
  for (const std::string word : {"The", "loss", "of", "every", "step"}) {
    for (int i = 0; i < 40; ++i) absl::StrAppend(&text, word, " ", i, " on ");
    absl::StrAppend(&text, "x\n  y   z \xe4\xbd\xa0\xe5\xa5\xbd end\n");
  }
  for (const auto& [name, unused] : Golden()["models"].items()) {
    const std::string model = ReadTestdata(name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto whole,
                                 CreateSentencePieceTokenizer(model, ""));
    const std::vector<TokenId> expected = whole->Encode(text);
    for (const int64_t part_bytes : {50, 77, 501}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const auto parts,
          CreateSentencePieceTokenizer(model, "", part_bytes));
      EXPECT_EQ(parts->Encode(text), expected) << name << ", " << part_bytes;
    }
  }
  EXPECT_THAT(CreateSentencePieceTokenizer(ReadTestdata("llama.model"), "", 9),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parts of 9 bytes")));
}

// The text has no position where splitting preserves the ids.
TEST(SentencePieceTokenizerTest, SplittingTextWithoutSpacesIsLossless) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += "\xe4\xbd\xa0\xe5\xa5\xbd\xf0\x9f\x98\x80,";
  for (const char* name : {"llama.model", "gemma.model"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto tokenizer,
        CreateSentencePieceTokenizer(ReadTestdata(name), "", 33));
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text) << name;
  }
}

TEST(SentencePieceTokenizerTest, ContinuedTextsKeepSpace) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto tokenizer,
      CreateSentencePieceTokenizer(ReadTestdata("llama.model"), ""));
  const std::vector<TokenId> ids = tokenizer->Encode("the end");
  std::string text;
  tokenizer->AppendText(ids, text);
  EXPECT_EQ(text, "the end");
  tokenizer->AppendText(ids, text);
  EXPECT_EQ(text, "the end the end");
  // Unknown ids and control pieces have no text.
  const std::vector<TokenId> others = {-1, 1'000'000, 1, 2};
  tokenizer->AppendText(others, text);
  EXPECT_EQ(text, "the end the end");
}

// Compares with LlamaTokenizer(legacy=False) of transformers 5 with
// add_special_tokens=False.
TEST(SentencePieceTokenizerTest, SpecialTokensAreIdsIfRecognised) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto tokenizer,
      CreateSentencePieceTokenizer(ReadTestdata("llama.model"), ""));
  const std::vector<std::pair<std::string, std::vector<TokenId>>> cases = {
      {"<s>a</s>", {1, 447, 2}},
      {"a b</s> c", {262, 287, 2, 368}},
      {"</s></s>the", {2, 2, 263, 444}},
      {"the <s> of", {278, 443, 1, 286}},
      {"<s>", {1}},
      {"", {}}};
  for (const auto& [text, ids] : cases) {
    EXPECT_EQ(tokenizer->Encode(text, SpecialTokens::kRecognised), ids) << text;
    for (const TokenId id : tokenizer->Encode(text)) EXPECT_GT(id, 2) << text;
  }
}

TEST(SentencePieceTokenizerTest, EndOfTextIsGivenOrFromModel) {
  const std::string model = ReadTestdata("llama.model");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto given,
                               CreateSentencePieceTokenizer(model, "<s>"));
  EXPECT_EQ(given->end_of_text(), 1);
  EXPECT_THAT(CreateSentencePieceTokenizer(model, "<nix>"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"<nix>\", is no piece")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto none,
                               CreateSentencePieceTokenizer(Model(""), ""));
  EXPECT_EQ(none->end_of_text(), std::nullopt);
}

TEST(SentencePieceTokenizerTest, RejectsModelsRejectedByLibrary) {
  const auto refused = [](auto word) {
    return StatusIs(
        absl::StatusCode::kInvalidArgument,
        AllOf(HasSubstr(word), HasSubstr("expected a SentencePiece model")));
  };
  EXPECT_THAT(StatusOf(Model(Piece("u", kUnknown))), refused("unk is already"));
  EXPECT_THAT(StatusOf(Piece("a") + BytesField(2, "") + BytesField(3, "")),
              refused("unk is not defined"));
  EXPECT_THAT(StatusOf(Model(Piece("<0x41>", kByte))),
              refused("byte piece <0x41>"));
}

// Uses the largest number of matching pieces per text position that
// SentencePieceModel allows; the longest piece is chosen.
TEST(SentencePieceTokenizerTest, EncodesWithTheMostNestedPieces) {
  std::string user_defined, normal;
  for (size_t i = 1; i <= 64; ++i) {
    user_defined += Piece(std::string(i, 'n'), kUserDefined);
  }
  for (size_t i = 1; i <= 1000; ++i) normal += Piece(std::string(i, 'n'));
  const std::string no_prefix = NumberField(3, 0);
  const std::string unigram = NumberField(3, 1);
  const auto encode = [](const std::string& model, size_t length) {
    const auto tokenizer = CreateSentencePieceTokenizer(model, "");
    TESSERA_EXPECT_OK(tokenizer);
    return tokenizer.ok() ? (*tokenizer)->Encode(std::string(length, 'n'))
                          : std::vector<TokenId>();
  };
  const std::vector<TokenId> longest_user_defined = {66};
  const std::vector<TokenId> longest_normal = {1002};
  EXPECT_EQ(encode(Model(user_defined, no_prefix), 64), longest_user_defined);
  EXPECT_EQ(encode(Model(user_defined, no_prefix, unigram), 64),
            longest_user_defined);
  EXPECT_EQ(encode(Model(normal, no_prefix, unigram), 1000), longest_normal);
}

TEST(SentencePieceTokenizerTest, LoadsFromAFileOrADirectory) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/spm");
  std::filesystem::create_directory(directory);
  const std::string file = directory + "/tokenizer.model";
  TESSERA_ASSERT_OK(WriteFile(file, ReadTestdata("llama.model")));
  TESSERA_ASSERT_OK(WriteFile(directory + "/tokenizer_config.json",
                              R"({"eos_token": {"content": "<unk>"}})"));
  for (const std::string& path : {directory, file}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(path));
    EXPECT_EQ(tokenizer->vocabulary_size(), 520);
    EXPECT_EQ(tokenizer->end_of_text(), 0);
  }
  TESSERA_ASSERT_OK(WriteFile(directory + "/tokenizer_config.json", "{}"));
  // A SentencePiece model with both files, whose tokenizer.json is of an
  // unsupported kind.
  const std::string json = directory + "/tokenizer.json";
  TESSERA_ASSERT_OK(
      WriteFile(json, R"({"model": {"type": "Unigram", "vocab": []}})"));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tokenizer, LoadTokenizer(directory));
  EXPECT_EQ(tokenizer->vocabulary_size(), 520);
  // Tokens that files beside the model add would be split.
  const std::string added = R"({"added_tokens_decoder": {
      "1": {"content": "<s>"}, "520": {"content": "<pad>"},
      "521": {"content": "<|im_start|>"}}})";
  for (const auto& [name, contents] :
       {std::pair("/tokenizer_config.json", added.c_str()),
        std::pair("/added_tokens.json", R"({"<|im_start|>": 521})")}) {
    TESSERA_ASSERT_OK(WriteFile(directory + name, contents));
    EXPECT_THAT(LoadTokenizer(directory),
                StatusIs(absl::StatusCode::kUnimplemented,
                         HasSubstr("the token \"<|im_start|>\" with id 521")));
    TESSERA_ASSERT_OK(WriteFile(directory + name, "{}"));
  }
  // A supported tokenizer.json takes precedence, and so does its error.
  TESSERA_ASSERT_OK(WriteFile(json, ReadTestdata("tokenizer.json")));
  TESSERA_ASSERT_OK_AND_ASSIGN(tokenizer, LoadTokenizer(directory));
  EXPECT_EQ(tokenizer->vocabulary_size(), 769);
  TESSERA_ASSERT_OK(WriteFile(json, "[]"));
  EXPECT_THAT(LoadTokenizer(directory),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("spm/tokenizer.json")));
}

// Fuzzes whole models and small ones, whose every part is damaged often.
TEST(SentencePieceTokenizerFuzzTest, DamagedModelsAreRejectedOrEncode) {
  const std::string small =
      Model(Piece("ab", kNormal, -1) + Piece("<u>", kUserDefined) +
                Piece("<uv>", kUserDefined) + Piece("</s>", kControl) +
                Piece("\xe2\x96\x81"),
            NumberField(3, 1) + NumberField(4, 0));
  const std::string whole = ReadTestdata("unigram.model");
  // The map and the fields around it, without most of the pieces.
  std::string map;
  for (size_t at = 0, count = 0; at < whole.size(); ++count) {
    const size_t end = whole[at] == '\x0a'
                           ? at + 2 + static_cast<size_t>(whole[at + 1])
                           : whole.size();
    if (count < 40 || end == whole.size()) map += whole.substr(at, end - at);
    at = end;
  }
  TESSERA_ASSERT_OK(StatusOf(small));
  TESSERA_ASSERT_OK(StatusOf(map));
  TextMutator mutator(
      {small, small, map, map, map, ReadTestdata("llama.model"), whole},
      {Piece("</s>"), Piece("x", kControl), Piece("<u", kUserDefined),
       Piece("abab", kUnused), NumberField(3, 1), FloatField(2, 1e38f),
       std::string(10, '\xff'), std::string(8, '\0')},
      8);
  std::string text =
      "abab <u><uv> </s>b\xff 12 \n\xc3\xa9 the file \xef\xac\x81n";
  text += std::string("\0\xe2\x96\x81", 4);
  int valid = 0;
  for (int round = 0; round < 30'000; ++round) {
    const auto tokenizer = CreateSentencePieceTokenizer(mutator.Next(), "");
    if (!tokenizer.ok()) {
      ASSERT_TRUE(absl::IsInvalidArgument(tokenizer.status()) ||
                  absl::IsUnimplemented(tokenizer.status()));
      ASSERT_FALSE(tokenizer.status().message().empty());
      ASSERT_LT(tokenizer.status().message().size(), 2000u);
      continue;
    }
    ++valid;
    const std::vector<TokenId> ids = (*tokenizer)->Encode(text);
    ASSERT_FALSE(ids.empty());
    for (const TokenId id : ids) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, (*tokenizer)->vocabulary_size());
    }
    (*tokenizer)->Decode(ids);
  }
  EXPECT_GT(valid, 3000);
}

}  // namespace
}  // namespace tessera::text
