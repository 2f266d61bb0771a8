// Mutated documents: each is refused with a message, or gives a configuration
// that survives writing, reading and checking.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/text_mutator.h"
#include "gtest/gtest.h"
#include "topology/config/parallel_config.h"
#include "topology/config/parallel_config_json.h"

namespace tessera::topology {
namespace {

// Numbers at the edges of their types, and the beginnings of deep nesting.
const std::vector<std::string>& EdgeTokens() {
  static const auto* const tokens =
      new std::vector<std::string>{"9223372036854775807",
                                   "9223372036854775808",
                                   "18446744073709551616",
                                   "-9223372036854775808",
                                   "-0",
                                   "1e308",
                                   "1e309",
                                   "0.0",
                                   "00",
                                   "-1",
                                   std::string(2000, '['),
                                   std::string(2000, '{'),
                                   "\"",
                                   "9",
                                   "-",
                                   "\"tp\":8,",
                                   "tp4,"};
  return *tokens;
}

// Checking any configuration whatever ends with messages, not with a crash.
void ExpectCheckable(const ParallelConfig& config) {
  for (const ConfigProblem& problem : config.ProblemsForWorld(8)) {
    EXPECT_FALSE(problem.allowed.empty());
    EXPECT_FALSE(problem.fix.empty());
  }
  EXPECT_EQ(config.Validate().ok(), config.Problems().empty());
  if (config.Validate().ok()) {
    TESSERA_EXPECT_OK(config.MakeMesh());
  }
}

TEST(ParallelConfigFuzzTest, Json) {
  ParallelConfig full;
  full.layers = 32;
  full.order = "t\xc3\xa9p-\"\\";
  TextMutator mutator({"{}", R"({"dp": 2, "tp":4})", FormatParallelConfig(full),
                       R"({"timeout": 1.5e1, "device_memory": 80})",
                       R"({"schedule": "zb_v", "order": "\u0064\n"})"},
                      EdgeTokens(), 11);
  int valid = 0;
  for (int round = 0; round < 60'000; ++round) {
    const std::string text = mutator.Next();
    const absl::StatusOr<ParallelConfig> config = ParseParallelConfig(text);
    if (!config.ok()) {
      ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(config.status().message().empty());
      ASSERT_LT(config.status().message().size(), 1000u);
      continue;
    }
    ++valid;
    ASSERT_THAT(ParseParallelConfig(FormatParallelConfig(*config)),
                IsOkAndHolds(*config))
        << text;
    ExpectCheckable(*config);
  }
  EXPECT_GT(valid, 500);
}

TEST(ParallelConfigFuzzTest, CompactSizes) {
  TextMutator mutator({"dp2,pp2,tp2", "dp=2,tp=4,ep=4", "cp3", "ep16,dp16",
                       "dp1,tp1,pp1,cp1,ep1"},
                      EdgeTokens(), 12);
  int valid = 0;
  for (int round = 0; round < 60'000; ++round) {
    const std::string text = mutator.Next();
    const auto config = ParallelConfig::FromSizes(text);
    if (!config.ok()) {
      ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(config.status().message().empty());
      continue;
    }
    ++valid;
    ASSERT_THAT(ParallelConfig::FromSizes(config->Sizes()),
                IsOkAndHolds(*config))
        << text;
    ExpectCheckable(*config);
  }
  EXPECT_GT(valid, 500);
}

}  // namespace
}  // namespace tessera::topology
