#include "tools/train/loop/training_data.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class TrainingDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("BUILD_WORKSPACE_DIRECTORY");
    static int number = 0;
    root_ =
        absl::StrCat(::testing::TempDir(), "/data", getpid(), ".", number++);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { unsetenv("BUILD_WORKSPACE_DIRECTORY"); }

  std::string Path(const std::string& name) {
    return absl::StrCat(root_, "/", name);
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(
        std::filesystem::path(Path(name)).parent_path());
    TESSERA_EXPECT_OK(WriteFile(Path(name), text));
    return Path(name);
  }

  // Settings with sequences of four tokens.
  Settings Short() {
    Settings settings;
    settings.length = 4;
    return settings;
  }

  std::string root_;
};

std::string TextOf(const TrainingData& data) {
  std::vector<text::TokenId> tokens(
      static_cast<size_t>(data.samples->corpus().token_count()));
  TESSERA_EXPECT_OK(data.samples->corpus().Read(0, tokens));
  return data.tokenizer->Decode(tokens);
}

TEST_F(TrainingDataTest, ReadsTheNamedTextsAsBytes) {
  Settings settings = Short();
  settings.data = {Write("b.txt", "second"), Write("docs/a.md", "first")};
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                               OpenTrainingData(settings));
  EXPECT_EQ(TextOf(data), "secondfirst");
  EXPECT_EQ(data.tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(data.samples->sequence(), 4);
  settings.data = {Path("docs"), Path("*.txt")};
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData other,
                               OpenTrainingData(settings));
  EXPECT_EQ(TextOf(other), "firstsecond");
  EXPECT_NE(other.samples->corpus().fingerprint(),
            data.samples->corpus().fingerprint());
}

TEST_F(TrainingDataTest, TheSeedOrdersTheSamples) {
  Settings settings = Short();
  settings.data = {Write("a.txt", std::string(4000, 'x'))};
  const auto order = [&] {
    const TrainingData data = *OpenTrainingData(settings);
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < 50; ++i) {
      samples.push_back(data.samples->PlaceOf(i).index);
    }
    return samples;
  };
  const std::vector<int64_t> first = order();
  EXPECT_EQ(order(), first);
  settings.seed = 2;
  EXPECT_NE(order(), first);
}

TEST_F(TrainingDataTest, RejectsMissingOrTooShortData) {
  const auto refused = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(StartsWith("--data="), HasSubstr(words)));
  };
  Settings settings = Short();
  settings.data = {"/does/not/exist"};
  EXPECT_THAT(OpenTrainingData(settings),
              refused("--data=/does/not/exist: no data file"));
  settings.data = {Write("a.txt", "abc")};
  EXPECT_THAT(OpenTrainingData(settings),
              refused("the data has 4 tokens; one sample of 4 needs at least "
                      "5"));
  settings.data = {Write("a.txt", "abcd")};
  TESSERA_EXPECT_OK(OpenTrainingData(settings));
  settings.data = {Write("a.txt", "")};
  EXPECT_THAT(OpenTrainingData(settings), refused("empty"));
  // A token outside the byte vocabulary: 0x1234.
  settings.data = {Write("a.u16", "\x34\x12 a a a a a")};
  EXPECT_THAT(OpenTrainingData(settings), refused("4660"));
}

TEST_F(TrainingDataTest, BlendsDataByWeights) {
  Settings settings = Short();
  const std::string a = Write("a.txt", std::string(400, 'a'));
  const std::string b = Write("b.txt", std::string(100, 'b'));
  settings.data = {a + ":0.75", b + ":0.25"};
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                               OpenTrainingData(settings));
  std::vector<text::TokenId> tokens(static_cast<size_t>(settings.length + 1));
  int of_a = 0;
  for (int64_t i = 0; i < 200; ++i) {
    TESSERA_ASSERT_OK(data.samples->ReadTraining(i, tokens));
    if (tokens[0] == 'a') ++of_a;
  }
  EXPECT_EQ(of_a, 150);
  const auto refused = [&](std::vector<std::string> paths, const char* words) {
    settings.data = std::move(paths);
    EXPECT_THAT(OpenTrainingData(settings),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(StartsWith("--data="), HasSubstr(words))));
  };
  refused({a + ":0.75", b + ":0.24"}, "the weights add up to 0.99; they must");
  refused({a + ":0.75", b}, "b.txt has no weight; give all a weight, or none");
  refused({a + ":1.5", b + ":-0.5"},
          "a.txt has weight 1.5; it must be above 0");
  refused({a + ":nan"}, "a.txt has weight nan");
  refused({a + ":0.5", "missing:0.5"}, "no data file");
}

TEST_F(TrainingDataTest, NumbersAfterColonsMayBelongToNames) {
  Settings settings = Short();
  const std::string text(40, 'a');
  const auto tokens_of = [&](std::vector<std::string> paths) {
    settings.data = std::move(paths);
    const auto data = OpenTrainingData(settings);
    TESSERA_EXPECT_OK(data);
    return data.ok() ? data->samples->corpus().token_count() : 0;
  };
  const std::string date = Write("corpus-2024-01-01T10:30", text);
  const std::string share = Write("data:0.7", text);
  EXPECT_EQ(tokens_of({date}), 41);
  EXPECT_EQ(tokens_of({date, share}), 82);
  EXPECT_EQ(tokens_of({Path("corpus*T10:30")}), 41);
  // Names that a flag has split at commas.
  const std::string commas = Write("a, b,c.txt", text);
  EXPECT_EQ(tokens_of({Path("a"), " b", "c.txt", date}), 82);
  settings.data = {Path("a"), " b", "c.txt:0.5", share + ":0.5"};
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData blend,
                               OpenTrainingData(settings));
  EXPECT_EQ(blend.samples->parts(), 2u);
  const auto refused = [&](const std::string& path, const char* words) {
    settings.data = {path};
    EXPECT_THAT(OpenTrainingData(settings),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(StartsWith("--data="), HasSubstr(words))));
  };
  refused(Path("missing:30"), "missing:30\"");
  refused(date + ":30", "T10:30 has weight 30");
}

TEST_F(TrainingDataTest, TrainsOnTokensWithLabels) {
  Settings settings = Short();
  settings.data = {
      Write("a.json",
            R"({"input_ids": [1, 2, 3, 4, 5], "labels": )"
            R"([-100, 2, -100, -100, 5], "attention_mask": [1, 1, 1, 1, 1]})"
            "\n")};
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                               OpenTrainingData(settings));
  std::vector<text::TokenId> tokens(5);
  TESSERA_ASSERT_OK(data.samples->ReadTraining(0, tokens));
  EXPECT_EQ(tokens, (std::vector<text::TokenId>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(data.samples->has_masks());
  EXPECT_THAT(data.samples->CountTargets(text::SampleUse::kTraining, 0),
              IsOkAndHolds(2));
  settings.data = {Write("b.json", R"({"input_ids": [1, 300]})")};
  EXPECT_THAT(OpenTrainingData(settings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("b.json\", line 1: \"input_ids\"[1] is "
                                       "300"),
                             HasSubstr("from 0 to 256"))));
}

TEST_F(TrainingDataTest, SkipsInvalidLinesUpToALimit) {
  Settings settings = Short();
  const std::string a =
      Write("a.json", "{\"text\": \"" + std::string(200, 'a') +
                          "\"}\n{\"text\": \n{\"\n");
  const std::string b =
      Write("b.json", "{\"text\": \"" + std::string(200, 'b') + "\"}\n{]\n");
  for (const std::vector<std::string>& paths :
       {std::vector{a, b}, std::vector{a + ":0.5", b + ":0.5"}}) {
    settings.data = paths;
    settings.max_bad_lines = 3;
    TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                                 OpenTrainingData(settings));
    EXPECT_EQ(data.samples->bad_lines(), 3);
    settings.max_bad_lines = 2;
    EXPECT_THAT(OpenTrainingData(settings),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("b.json\", line 2: ")));
  }
}

TEST_F(TrainingDataTest, PacksWholeDocuments) {
  Settings settings = Short();
  settings.length = 7;
  settings.packing = "whole";
  settings.data = {Write("a.json",
                         "{\"text\": \"12345\"}\n{\"text\": \"123456789\"}\n"
                         "{\"prompt\": \"ab\", \"completion\": \"c\"}\n")};
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                               OpenTrainingData(settings));
  EXPECT_EQ(data.samples->samples_per_epoch(), 3);
  EXPECT_EQ(data.samples->packed_documents(), 3);
  EXPECT_EQ(data.samples->cut_documents(), 1);
  int64_t targets = 0;
  for (int64_t i = 0; i < 3; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const int64_t count,
        data.samples->CountTargets(text::SampleUse::kTraining, i));
    targets += count;
  }
  EXPECT_EQ(targets, 5 + 7 + 2);
}

TEST_F(TrainingDataTest, MasksPromptsOfFilesWithPrompts) {
  Settings settings = Short();
  const std::string a =
      Write("a.jsonl", absl::StrCat(R"({"prompt": ")", std::string(300, 'p'),
                                    R"(", "completion": ")",
                                    std::string(99, 'c'), "\"}\n"));
  const std::string b = Write("b.txt", std::string(400, 'b'));
  settings.data = {a + ":0.5", b + ":0.5"};
  for (const bool masks : {true, false}) {
    settings.mask_prompts = masks;
    TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                                 OpenTrainingData(settings));
    EXPECT_EQ(data.samples->has_masks(), masks);
    std::vector<text::TokenId> tokens(static_cast<size_t>(settings.length + 1));
    int64_t targets = 0;
    const int64_t samples = data.samples->samples_per_epoch();
    for (int64_t i = 0; i < samples; ++i) {
      TESSERA_ASSERT_OK(data.samples->ReadTraining(i, tokens));
      const auto prompts = std::count(tokens.begin() + 1, tokens.end(), 'p');
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const int64_t count,
          data.samples->CountTargets(text::SampleUse::kTraining, i));
      EXPECT_EQ(count, settings.length - (masks ? prompts : 0));
      targets += count;
    }
    EXPECT_EQ(targets < samples * settings.length, masks);
  }
  settings.data = {
      Write("c.jsonl", "{\"text\": \"a\"}\n{\"prompt\": \"b\"}\n")};
  EXPECT_THAT(
      OpenTrainingData(settings),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(StartsWith("--data="), HasSubstr("c.jsonl\", line 2: "))));
}

TEST_F(TrainingDataTest, HoldsOutTheEndForValidation) {
  Settings settings = Short();
  settings.data = {Write("a.txt", std::string(400, 'x'))};  // 100 samples.
  settings.batch = 3;
  settings.validation_fraction = 0.1;
  settings.eval_batches = 4;
  // Unused without --eval_every.
  TESSERA_ASSERT_OK_AND_ASSIGN(TrainingData data, OpenTrainingData(settings));
  EXPECT_EQ(data.samples->validation_count(), 10);
  EXPECT_EQ(data.samples->samples_per_epoch(), 90);
  settings.eval_every = 5;
  EXPECT_THAT(
      OpenTrainingData(settings),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "--eval_batches=4: --validation_fraction=0.1 of the data has 10 "
               "sequences of 4 tokens, which fill 3 batches of 3; give more "
               "data, a larger --validation_fraction or fewer --eval_batches"));
  settings.eval_batches = 3;
  TESSERA_EXPECT_OK(OpenTrainingData(settings));
}

TEST_F(TrainingDataTest, TheTestNeedsABatch) {
  Settings settings = Short();
  settings.data = {Write("a.txt", std::string(400, 'x'))};  // 100 samples.
  settings.batch = 6;
  settings.test_fraction = 0.05;
  EXPECT_THAT(OpenTrainingData(settings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--test_fraction=0.05: that share of the data "
                                 "has 5 sequences of 4 tokens; the test needs "
                                 "a batch of 6")));
  settings.batch = 5;
  TESSERA_ASSERT_OK_AND_ASSIGN(TrainingData data, OpenTrainingData(settings));
  EXPECT_EQ(data.samples->test_count(), 5);
}

TEST_F(TrainingDataTest, ReadsATokenizer) {
  // The tokens "a" and "b", and their merge.
  Write("tok/tokenizer.json",
        R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},)"
        R"( "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel",)"
        R"( "add_prefix_space": false, "use_regex": true}})");
  Settings settings = Short();
  settings.tokenizer = Path("tok");
  settings.data = {Write("a.txt", "abababababa")};
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                               OpenTrainingData(settings));
  EXPECT_EQ(data.samples->corpus().token_count(), 6);
  // The model's tokenizer is the default.
  settings.tokenizer = "";
  settings.model = Path("tok");
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData same,
                               OpenTrainingData(settings));
  EXPECT_EQ(same.samples->corpus().fingerprint(),
            data.samples->corpus().fingerprint());
  Write("tok/tokenizer.json", "{}");
  EXPECT_THAT(
      OpenTrainingData(settings),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          AllOf(StartsWith("--model="),
                HasSubstr(absl::StrCat(Path("tok"), "/tokenizer.json\": ")))));
  settings.model = "llama-1m";
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData bytes,
                               OpenTrainingData(settings));
  EXPECT_EQ(bytes.samples->corpus().token_count(), 12);
  settings.tokenizer = "nowhere";
  EXPECT_THAT(OpenTrainingData(settings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--tokenizer=nowhere: ")));
}

TEST_F(TrainingDataTest, SpecialTokensFollowTheFlag) {
  Write("tok/tokenizer.json",
        R"({"model": {"type": "BPE", "vocab": {"a": 0, "<": 1, ">": 2},)"
        R"( "merges": []}, "added_tokens": [{"id": 3, "content": "<a>",)"
        R"( "special": true}], "pre_tokenizer": {"type": "ByteLevel",)"
        R"( "add_prefix_space": false, "use_regex": true}})");
  Settings settings = Short();
  settings.tokenizer = Path("tok");
  settings.data = {Write("a.txt", "<a><a>aaa"),
                   Write("a.jsonl", R"({"prompt": "<a>", "completion": "a"})")};
  for (const auto& [value, tokens] :
       {std::pair{"pairs", 9 + 2}, {"ids", 5 + 2}, {"text", 9 + 4}}) {
    settings.special_tokens = value;
    TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                                 OpenTrainingData(settings));
    EXPECT_EQ(data.samples->corpus().token_count(), tokens) << value;
  }
  settings.special_tokens = "none";
  EXPECT_THAT(OpenTrainingData(settings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--special_tokens=none: allowed: pairs")));
}

TEST_F(TrainingDataTest, TokensOfLongTextsAreKept) {
  Write("tok/tokenizer.json",
        R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},)"
        R"( "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel",)"
        R"( "add_prefix_space": false, "use_regex": true}})");
  std::string text;
  while (text.size() < (1u << 20)) text += "ab";
  Settings settings = Short();
  settings.tokenizer = Path("tok");
  settings.data = {Write("a.txt", text)};
  settings.token_cache = "off";
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData plain,
                               OpenTrainingData(settings));
  EXPECT_GT(plain.samples->corpus().memory_bytes(), 0);
  setenv("XDG_CACHE_HOME", Path("cache").c_str(), 1);
  for (const char* const given : {"", "own"}) {
    settings.token_cache = *given == '\0' ? "" : Path(given);
    TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                                 OpenTrainingData(settings));
    EXPECT_EQ(data.samples->corpus().memory_bytes(), 0);
    EXPECT_EQ(data.samples->fingerprint(), plain.samples->fingerprint());
  }
  unsetenv("XDG_CACHE_HOME");
  EXPECT_FALSE(std::filesystem::is_empty(Path("cache/tessera/tokens")));
  EXPECT_FALSE(std::filesystem::is_empty(Path("own")));
}

TEST_F(TrainingDataTest, ReadsWorkspaceWithoutData) {
  Write("z.md", "doc z ");
  Write("b/b.h", "header b ");
  Write("a.cc", "source a ");
  Write("a.h", "header a ");
  Write("notes.txt", "not");
  Write(".git/x.md", "not");
  Write("bazel-out/x.md", "not");
  Write("empty.md", "");
  Write("binary.h", std::string("\0", 1));
  std::filesystem::create_directory_symlink(root_, Path("link"));
  setenv("BUILD_WORKSPACE_DIRECTORY", root_.c_str(), 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                               OpenTrainingData(Short()));
  EXPECT_EQ(TextOf(data), "doc z header a header b source a ");
}

TEST_F(TrainingDataTest, TextsBelowADirectoryAreBounded) {
  const std::string a = Write("a.md", std::string(10, 'a'));
  const std::string b = Write("b.md", std::string(20, 'b'));
  const std::string c = Write("c.cc", "c");
  EXPECT_THAT(FindTextsBelow(root_, 31), ElementsAre(a, b, c));
  EXPECT_THAT(FindTextsBelow(root_, 30), ElementsAre(a, b));
  EXPECT_THAT(FindTextsBelow(root_, 29), ElementsAre(a));
  EXPECT_THAT(FindTextsBelow(root_, 9), IsEmpty());
  EXPECT_THAT(FindTextsBelow(Path("nowhere"), 100), IsEmpty());
}

TEST_F(TrainingDataTest, UsesEmbeddedTextsByDefault) {
  // Also without a workspace.
  for (const bool with_workspace : {false, true}) {
    if (with_workspace) setenv("BUILD_WORKSPACE_DIRECTORY", root_.c_str(), 1);
    TESSERA_ASSERT_OK_AND_ASSIGN(const TrainingData data,
                                 OpenTrainingData(Settings()));
    // The default run has 60 steps of 16 sequences of 128 tokens.
    EXPECT_GT(data.samples->corpus().token_count(), 60 * 16 * 128);
    EXPECT_LE(data.samples->corpus().token_count(), kMostRepositoryBytes + 1);
    EXPECT_THAT(TextOf(data), HasSubstr("class TrainRank"));
  }
}

TEST_F(TrainingDataTest, LooksForTextsInTheOrderOfPlaces) {
  const RepositoryPlaces none = {.workspace = Path("nowhere"),
                                 .runfiles = {"", Path("neither")}};
  EXPECT_THAT(FindRepositoryTexts(none),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("for example --data=docs,src/*.cc")));
  EXPECT_THAT(FindRepositoryTexts({}), StatusIs(absl::StatusCode::kNotFound));
  const std::string carried =
      Write("second/tessera/tools/train/loop/repository_texts_file.txt", "x");
  EXPECT_THAT(
      FindRepositoryTexts(
          {.workspace = "", .runfiles = {"", Path("first"), Path("second")}}),
      IsOkAndHolds(ElementsAre(carried)));
  const std::string own = Write("workspace/a.md", "own");
  EXPECT_THAT(FindRepositoryTexts({.workspace = Path("workspace"),
                                   .runfiles = {Path("second")}}),
              IsOkAndHolds(ElementsAre(own)));
}

}  // namespace
}  // namespace tessera::train
