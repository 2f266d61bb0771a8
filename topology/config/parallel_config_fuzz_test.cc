// Mutated documents: each is refused with a message, or gives a configuration
// that survives writing, reading and checking.
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/config/parallel_config.h"
#include "topology/config/parallel_config_json.h"

namespace tessera::topology {
namespace {

class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> corpus)
      : random_(seed), corpus_(std::move(corpus)) {}

  std::string Next() {
    std::string text = corpus_[Below(corpus_.size())];
    for (size_t i = Below(4); i < 4; ++i) Mutate(text);
    return text;
  }

 private:
  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }

  void Mutate(std::string& text) {
    const size_t at = Below(text.size());
    switch (Below(7)) {
      case 0:
        if (!text.empty()) text[at] ^= static_cast<char>(1 << Below(8));
        break;
      case 1:
        text.resize(at);
        break;
      case 2:
        text.insert(at, text.substr(at, Below(20)));
        break;
      case 3:
        text.insert(at, std::string(1 + Below(2000), "[{\"9-"[Below(5)]));
        break;
      case 4:
        text.insert(at, kNumbers[Below(std::size(kNumbers))]);
        break;
      case 5:
        text.erase(at, Below(10));
        break;
      default: {
        const std::string& other = corpus_[Below(corpus_.size())];
        text.insert(at, other.substr(Below(other.size()), Below(30)));
      }
    }
  }

  static constexpr const char* kNumbers[] = {"9223372036854775807",
                                             "9223372036854775808",
                                             "18446744073709551616",
                                             "-9223372036854775808",
                                             "-0",
                                             "1e308",
                                             "1e309",
                                             "0.0",
                                             "00",
                                             "-1"};

  std::mt19937_64 random_;
  std::vector<std::string> corpus_;
};

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
  Mutator mutator(11, {"{}", R"({"dp": 2, "tp":4})", FormatParallelConfig(full),
                       R"({"timeout": 1.5e1, "device_memory": 80})",
                       R"({"schedule": "zb_v", "order": "\u0064\n"})"});
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
  Mutator mutator(12, {"dp2,pp2,tp2", "dp=2,tp=4,ep=4", "cp3", "ep16,dp16",
                       "dp1,tp1,pp1,cp1,ep1"});
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
