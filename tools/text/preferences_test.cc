#include "tools/text/preferences.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileWith(const std::string& lines) {
  static int files = 0;
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/pairs", ++files, ".jsonl");
  std::ofstream(path) << lines;
  return path;
}

absl::StatusOr<std::shared_ptr<const Corpus>> Open(const std::string& lines,
                                                   int64_t length) {
  const std::string paths[] = {FileWith(lines)};
  return OpenPreferences(paths, ByteTokenizer(), length);
}

// The unmasked targets of a sample.
std::vector<TokenId> TargetsOf(const Samples& samples, SampleUse use,
                               int64_t index) {
  std::vector<TokenId> tokens(static_cast<size_t>(samples.sequence() + 1));
  EXPECT_THAT(samples.Read(use, index, tokens), IsOk());
  std::vector<bool> is_masked(tokens.size());
  const std::vector<TokenRange> masked = *samples.MaskedTokens(use, index);
  for (const TokenRange& range : masked) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      is_masked[static_cast<size_t>(i)] = true;
    }
  }
  std::vector<TokenId> targets;
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (!is_masked[i]) targets.push_back(tokens[i]);
  }
  return targets;
}

TEST(PreferencesTest, TargetsAreTokensOfCompletions) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto corpus,
      Open("{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4, 5], "
           "\"rejected_ids\": [6]}\n\n"
           "{\"prompt_ids\": [7], \"chosen_ids\": [8], \"rejected_ids\": "
           "[9, 10, 11, 12]}\n",
           5));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples samples,
      Samples::Create(corpus,
                      {.sequence = 5, .shuffle = false, .together = 2}));
  EXPECT_EQ(samples.samples_per_epoch(), 4);
  EXPECT_THAT(TargetsOf(samples, SampleUse::kTraining, 0),
              ElementsAre(3, 4, 5));
  EXPECT_THAT(TargetsOf(samples, SampleUse::kTraining, 1), ElementsAre(6));
  EXPECT_THAT(TargetsOf(samples, SampleUse::kTraining, 2), ElementsAre(8));
  EXPECT_THAT(TargetsOf(samples, SampleUse::kInOrder, 7),
              ElementsAre(9, 10, 11, 12));
}

TEST(PreferencesTest, StringsAreEncodedLikePromptsAndCompletions) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto corpus,
      Open("{\"prompt\": \"ab\", \"chosen\": \"c\", \"rejected\": \"de\"}", 8));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples samples,
      Samples::Create(corpus,
                      {.sequence = 8, .shuffle = false, .together = 2}));
  const TokenId end = *ByteTokenizer().end_of_text();
  EXPECT_THAT(TargetsOf(samples, SampleUse::kTraining, 0),
              ElementsAre('c', end));
  EXPECT_THAT(TargetsOf(samples, SampleUse::kTraining, 1),
              ElementsAre('d', 'e', end));
}

// The two sequences of a pair stay together in every epoch and use.
TEST(PreferencesTest, ShufflesAndHoldsOutPairs) {
  const ByteTokenizer tokenizer;
  PreferenceCorpus pairs(tokenizer, 4);
  for (TokenId i = 0; i < 10; ++i) {
    const TokenId chosen[] = {1, 10 + i}, rejected[] = {1, 100 + i};
    const TokenRange prompt[] = {{0, 1}};
    TESSERA_ASSERT_OK(pairs.Add({{.ids = chosen, .masked = prompt},
                                 {.ids = rejected, .masked = prompt}}));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus, pairs.Build());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples samples,
      Samples::Create(corpus, {.sequence = 4,
                               .validation_fraction = 0.25,
                               .test_fraction = 0.1,
                               .seed = 3,
                               .together = 2}));
  EXPECT_EQ(samples.samples_per_epoch(), 14);
  EXPECT_EQ(samples.validation_count(), 4);
  EXPECT_EQ(samples.test_count(), 2);
  bool is_shuffled = false;
  for (int64_t i = 0; i < 42; i += 2) {
    const TokenId chosen = TargetsOf(samples, SampleUse::kTraining, i)[0];
    EXPECT_LT(chosen, 17);
    EXPECT_THAT(TargetsOf(samples, SampleUse::kTraining, i + 1),
                ElementsAre(chosen + 90));
    is_shuffled = is_shuffled || chosen != 10 + i / 2 % 7;
    TESSERA_ASSERT_OK_AND_ASSIGN(const int64_t number,
                                 samples.NumberOf(SampleUse::kTraining, i));
    EXPECT_EQ(number, 2 * (chosen - 10));
  }
  EXPECT_TRUE(is_shuffled);
}

TEST(PreferencesTest, RefusesInvalidLinesByNumber) {
  const std::string good =
      "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
  const struct {
    std::string line, message;
  } cases[] = {
      {"{\"prompt\": \"a\", \"chosen\": \"b\"}",
       "the strings \"prompt\", \"chosen\" and \"rejected\""},
      {"[]", "the strings \"prompt\""},
      {"{\"prompt\": [{\"role\": \"user\"}], \"chosen\": [], \"rejected\": []}",
       "the template of a chat, which is not supported"},
      {"{\"prompt\": \"\", \"chosen\": \"b\", \"rejected\": \"c\"}",
       "the prompt has no tokens"},
      {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"123456789\"}",
       "the prompt and the rejected completion have 11 tokens, and sequences "
       "have 8"},
      {"{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [999]}",
       "\"rejected_ids\"[0] is 999"},
      {"{\"prompt_ids\": [1], \"chosen_ids\": [], \"rejected_ids\": [2]}",
       "the chosen completion has no tokens"},
      {"{\"prompt_ids\": [1], \"chosen_ids\": [2]}",
       "\"rejected_ids\" is missing"},
      {"{", "line 3"},
  };
  for (const auto& [line, message] : cases) {
    EXPECT_THAT(Open(absl::StrCat(good, "\n", line, "\n"), 8).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(", line 3"), HasSubstr(message))))
        << line;
  }
  EXPECT_THAT(Open("\n\n", 8).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the data has no pairs")));
}

}  // namespace
}  // namespace tessera::text
