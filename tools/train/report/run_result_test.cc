#include "tools/train/report/run_result.h"

#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

RunResult Example(uint64_t seed, size_t steps, size_t ranks) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> real(-10, 10);
  const auto whole = [&] { return static_cast<int64_t>(random() >> 1); };
  const auto shares = [&] {
    return TimeShares{real(random), real(random), real(random),
                      real(random), real(random), real(random)};
  };
  const auto purposes = [&] {
    BytesByPurpose bytes;
    for (int64_t& value : bytes) value = whole();
    return bytes;
  };
  RunResult result;
  for (size_t i = 0; i < steps; ++i) {
    result.steps.push_back(
        {.record =
             {whole(), real(random), real(random), real(random), real(random),
              random() % 2 == 0,
              random() % 2 == 0 ? std::optional(real(random)) : std::nullopt,
              random() % 2 == 0 ? std::optional(real(random)) : std::nullopt,
              random() % 2 == 0 ? std::optional(real(random)) : std::nullopt,
              whole(), whole()},
         .seconds = real(random),
         .tokens_per_second = real(random),
         .memory_bytes = whole(),
         .shares = shares()});
  }
  for (size_t i = 0; i < ranks; ++i) {
    result.ranks.push_back({.shares = shares(),
                            .memory = {whole(), whole(), whole(), purposes(),
                                       purposes(), purposes()},
                            .traffic = {whole(), whole(), whole(), whole()}});
  }
  for (size_t i = 0; i < ranks; ++i) {
    result.strategy_changes.push_back(
        {whole(), whole(), "extreme", "--zero=3 --offload_dir=/a b"});
    result.rollbacks.push_back(
        {whole(), real(random), real(random), whole(), whole()});
    result.snapshot_choices.push_back(
        {whole(), real(random), real(random), real(random)});
  }
  result.first_step = whole();
  result.memory_is_shared = random() % 2 == 0;
  result.checkpoint = "/a \"b\"/\xc3\xa4/step-1";
  result.tokens_per_second = real(random);
  result.seconds = real(random);
  return result;
}

TEST(RunResultJsonTest, RoundTrips) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RunResult result = Example(seed, seed % 4, seed % 3);
    TESSERA_ASSERT_OK_AND_ASSIGN(const RunResult back,
                                 ParseRunResult(FormatRunResult(result)));
    EXPECT_EQ(FormatRunResult(back), FormatRunResult(result));
    ASSERT_EQ(back.steps.size(), result.steps.size());
    for (size_t i = 0; i < back.steps.size(); ++i) {
      EXPECT_EQ(back.steps[i].record.loss, result.steps[i].record.loss);
      EXPECT_EQ(back.steps[i].record.eval_loss,
                result.steps[i].record.eval_loss);
      EXPECT_EQ(back.steps[i].shares.optimizer,
                result.steps[i].shares.optimizer);
    }
    ASSERT_EQ(back.ranks.size(), result.ranks.size());
    for (size_t i = 0; i < back.ranks.size(); ++i) {
      EXPECT_EQ(back.ranks[i].memory.file, result.ranks[i].memory.file);
      EXPECT_EQ(back.ranks[i].traffic.least_stall_ns,
                result.ranks[i].traffic.least_stall_ns);
    }
    ASSERT_EQ(back.strategy_changes.size(), result.strategy_changes.size());
    for (size_t i = 0; i < back.strategy_changes.size(); ++i) {
      EXPECT_EQ(back.strategy_changes[i].used, result.strategy_changes[i].used);
      EXPECT_EQ(back.strategy_changes[i].flags,
                result.strategy_changes[i].flags);
    }
    ASSERT_EQ(back.rollbacks.size(), result.rollbacks.size());
    for (size_t i = 0; i < back.rollbacks.size(); ++i) {
      EXPECT_EQ(back.rollbacks[i].loss, result.rollbacks[i].loss);
      EXPECT_EQ(back.rollbacks[i].skipped_samples,
                result.rollbacks[i].skipped_samples);
    }
    ASSERT_EQ(back.snapshot_choices.size(), result.snapshot_choices.size());
    for (size_t i = 0; i < back.snapshot_choices.size(); ++i) {
      EXPECT_EQ(back.snapshot_choices[i].every,
                result.snapshot_choices[i].every);
      EXPECT_EQ(back.snapshot_choices[i].copy_seconds,
                result.snapshot_choices[i].copy_seconds);
    }
    EXPECT_EQ(back.checkpoint, result.checkpoint);
  }
}

TEST(RunResultJsonTest, NonFiniteLossReadsAsNan) {
  RunResult result = Example(1, 1, 1);
  result.steps[0].record.loss = std::numeric_limits<double>::infinity();
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunResult back,
                               ParseRunResult(FormatRunResult(result)));
  EXPECT_TRUE(std::isnan(back.steps[0].record.loss));
}

TEST(RunResultJsonTest, NamesMissingField) {
  EXPECT_THAT(ParseRunResult("[]"), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("use an object")));
  EXPECT_THAT(ParseRunResult("{}"), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("seconds is missing")));
  std::string text = FormatRunResult(Example(1, 2, 1));
  const size_t at = text.rfind("\"products\":");
  text.replace(at, 11, "\"product\":");
  EXPECT_THAT(ParseRunResult(text),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ranks[0].shares.products")));
}

TEST(RunResultJsonTest, MutatedTextsAreResultsOrErrors) {
  std::mt19937_64 random(7);
  const std::string valid = FormatRunResult(Example(3, 1, 1));
  for (int round = 0; round < 3000; ++round) {
    std::string text = valid;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1 + random() % 9);
      } else {
        text[at] = static_cast<char>(random());
      }
      if (text.empty()) break;
    }
    const auto result = ParseRunResult(text);
    if (result.ok()) {
      TESSERA_EXPECT_OK(ParseRunResult(FormatRunResult(*result)).status());
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(result.status()));
      EXPECT_FALSE(result.status().message().empty());
    }
  }
}

}  // namespace
}  // namespace tessera::train
