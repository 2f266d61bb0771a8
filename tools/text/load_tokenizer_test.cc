#include "tools/text/load_tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "tools/text/tokenizer_files.h"

namespace tessera::text {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadTestdata(std::string_view name) {
  return *ReadFile(absl::StrCat("tools/text/testdata/", name), 1 << 20);
}

class LoadTokenizerTest : public ::testing::Test {
 protected:
  LoadTokenizerTest() {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }

  void Write(std::string_view name, std::string_view contents) {
    TESSERA_ASSERT_OK(WriteFile(Path(name), contents));
  }
  std::string Path(std::string_view name) const {
    return absl::StrCat(directory_, "/", name);
  }

  // Loads a file with these contents. An error is one line with its path.
  bool IsLoaded(std::string_view name, std::string_view contents) {
    Write(name, contents);
    const absl::Status status = LoadTokenizer(Path(name)).status();
    const std::string_view message = status.message();
    EXPECT_TRUE(status.ok() ||
                (absl::StrContains(message, Path(name)) &&
                 !absl::StrContains(message, "\n") && message.size() < 5000))
        << status;
    return status.ok();
  }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/model");
};

TEST_F(LoadTokenizerTest, ReadsAFileOrADirectory) {
  EXPECT_FALSE(HasTokenizer(directory_));
  EXPECT_THAT(
      LoadTokenizer(directory_),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("model/tokenizer.json")));
  EXPECT_THAT(LoadTokenizer(Path("a.model")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("a.model")));
  Write("tokenizer.json", ReadTestdata("tokenizer.json"));
  EXPECT_TRUE(HasTokenizer(directory_));
  for (const std::string& path : {directory_, Path("tokenizer.json")}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(path));
    EXPECT_EQ(tokenizer->end_of_text(), 0);
  }
}

TEST_F(LoadTokenizerTest, ReadsEndOfTextFromAdjacentConfiguration) {
  Write("tokenizer.json", ReadTestdata("tokenizer.json"));
  for (const char* token : {R"("<think>")", R"({"content": "<think>"})"}) {
    Write("tokenizer_config.json",
          absl::StrCat("{\"eos_token\": ", token, "}"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                 LoadTokenizer(Path("tokenizer.json")));
    EXPECT_EQ(tokenizer->end_of_text(), 768);
  }
  Write("tokenizer_config.json", R"({"eos_token": null})");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(directory_));
  EXPECT_EQ(tokenizer->end_of_text(), 0);
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(LoadTokenizer(directory_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("model/tokenizer_config.json")));
}

TEST_F(LoadTokenizerTest, BeginOfTextIsThatOfTransformers) {
  const std::string json = ReadTestdata("tokenizer.json");
  const auto begin = [&](std::string_view processor, std::string_view config) {
    Write("tokenizer.json",
          absl::StrReplaceAll(
              json, {{"\"post_processor\":null",
                      absl::StrCat("\"post_processor\":", processor)}}));
    Write("tokenizer_config.json", config);
    const auto tokenizer = LoadTokenizer(directory_);
    EXPECT_THAT(tokenizer, IsOk());
    return tokenizer.ok() ? (*tokenizer)->begin_of_text()
                          : std::vector<TokenId>{-1};
  };
  const std::string both = R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<think>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
      "pair": [], "special_tokens": {
        "<think>": {"id": "<think>", "ids": [768], "tokens": ["<think>"]},
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": []}}})";
  const std::string level = R"({"type": "ByteLevel", "trim_offsets": true})";
  const std::string bos = R"("bos_token": "<|endoftext|>"})";
  const std::string roberta = R"({"type": "RobertaProcessing",
      "sep": ["<|endoftext|>", 0], "cls": ["<think>", 768]})";
  EXPECT_THAT(begin(roberta, "{}"), ElementsAre(768));
  EXPECT_THAT(begin(level, "{}"), IsEmpty());
  EXPECT_THAT(begin(both, "{}"), ElementsAre(768));
  EXPECT_THAT(begin(absl::StrCat(R"({"type": "Sequence", "processors": [)",
                                 level, ",", both, "]}"),
                    "{}"),
              ElementsAre(768));
  EXPECT_THAT(begin(both, absl::StrCat("{", bos)), ElementsAre(768));
  // The configuration replaces the post_processor.
  EXPECT_THAT(begin(both, R"({"add_bos_token": false})"), IsEmpty());
  EXPECT_THAT(begin(both, R"({"add_eos_token": false})"), IsEmpty());
  EXPECT_THAT(begin(level, absl::StrCat(R"({"add_bos_token": true, )", bos)),
              ElementsAre(0));
  EXPECT_THAT(begin(level, R"({"add_bos_token": true, "bos_token": "<s>",
                   "added_tokens_decoder": {"9": {"content": "<s>"}}})"),
              ElementsAre(9));
  EXPECT_THAT(begin(level, R"({"add_bos_token": true, "bos_token": null})"),
              IsEmpty());
  Write("tokenizer_config.json",
        R"({"add_bos_token": true, "bos_token": "no such"})");
  EXPECT_THAT(LoadTokenizer(directory_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"no such\", is no token")));
}

TEST_F(LoadTokenizerTest, FingerprintCoversFileAndEndOfText) {
  const std::string json = ReadTestdata("tokenizer.json");
  const auto fingerprint = [&](std::string_view contents) {
    Write("tokenizer.json", contents);
    return LoadTokenizer(directory_).value()->fingerprint();
  };
  const uint64_t first = fingerprint(json);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(fingerprint(json), first);
  EXPECT_NE(fingerprint(absl::StrCat(json, " ")), first);
  Write("tokenizer_config.json", R"({"eos_token": "<think>"})");
  EXPECT_NE(fingerprint(json), first);
}

TEST_F(LoadTokenizerTest, MalformedFilesAreNamed) {
  Write("tokenizer.json", "[]");
  EXPECT_THAT(LoadTokenizer(directory_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("model/tokenizer.json")));
  std::filesystem::remove(Path("tokenizer.json"));
  Write("tokenizer.model", "{}");
  EXPECT_TRUE(HasTokenizer(directory_));
  EXPECT_THAT(LoadTokenizer(directory_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("model/tokenizer.model"),
                             HasSubstr("expected a SentencePiece model"))));
}

TEST_F(LoadTokenizerTest, RejectsTruncatedFiles) {
  for (const std::string_view name :
       {"tokenizer.json", "llama.model", "unigram.model"}) {
    const std::string whole = ReadTestdata(name);
    // A newline may end a tokenizer.json, an empty message a *.model.
    for (size_t size = 0; size + 2 < whole.size(); size += 41) {
      ASSERT_FALSE(IsLoaded(name, whole.substr(0, size))) << size;
    }
  }
}

TEST_F(LoadTokenizerTest, DamagedFilesAreLoadedOrNamed) {
  const std::vector<std::string> damage = {"\"", "{", "null", "\xff\xff", "\n"};
  for (const std::string_view name : {"tokenizer.json", "llama.model"}) {
    TextMutator mutator({ReadTestdata(name)}, damage, 3);
    int refused = 0;
    for (int round = 0; round < 300; ++round) {
      refused += IsLoaded(name, mutator.Next()) ? 0 : 1;
    }
    EXPECT_GT(refused, 100) << name;
  }
  const std::string valid = R"({"eos_token": {"content": "<think>"}})";
  Write("tokenizer.json", ReadTestdata("tokenizer.json"));
  TextMutator mutator({valid}, damage, 4);
  for (int round = 0; round < 300; ++round) {
    Write("tokenizer_config.json", mutator.Next());
    const absl::Status status = LoadTokenizer(directory_).status();
    ASSERT_FALSE(absl::StrContains(status.message(), "\n")) << status;
  }
}

TEST_F(LoadTokenizerTest, PolicyIsPartOfTheFingerprint) {
  Write("tokenizer.json", ReadTestdata("tokenizer.json"));
  std::set<uint64_t> fingerprints;
  for (const char* text : {"pairs", "ids", "text"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const SpecialTokenPolicy policy,
                                 ParseSpecialTokens(text));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                 LoadTokenizer(directory_, policy));
    fingerprints.insert(tokenizer->fingerprint());
    EXPECT_EQ(tokenizer->SpecialTokensOfTexts() == SpecialTokens::kRecognised,
              policy == SpecialTokenPolicy::kAll);
    EXPECT_EQ(tokenizer->SpecialTokensOfPairs() == SpecialTokens::kAsText,
              policy == SpecialTokenPolicy::kNone);
  }
  EXPECT_EQ(fingerprints.size(), 3u);
  EXPECT_THAT(ParseSpecialTokens("all"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("allowed: pairs, ids, text")));
}

}  // namespace
}  // namespace tessera::text
