// A model of several layers trains for 20 steps with its state in every place:
// every stage, number of ranks, choice of offloaded state, tier and codec gives
// the parameters of one rank without ZeRO, and the bits of the same stage and
// ranks with everything in memory.
//
// Runs a sample that covers every pair of choices; with TESSERA_FULL_MATRIX
// all.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/testing/tiers.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using Values = std::vector<std::vector<double>>;

constexpr int64_t kRanks[] = {1, 2, 3, 4, 8};
constexpr std::string_view kLossless[] = {"none", "lossless", "lossless_fast",
                                          "lossless_lz4"};
constexpr std::string_view kLossy[] = {"fp16", "bf16", "int8", "nf4",
                                       "nf4_double"};

enum class Offload { kNone, kOptimizer, kGradients, kParameters, kAll };

bool Applies(int stage, Offload offload) {
  if (offload == Offload::kGradients) return stage >= 2;
  return offload != Offload::kParameters || stage == 3;
}

struct Case {
  int stage = 0;
  int64_t ranks = 1;
  Offload offload = Offload::kNone;
  bool in_file = false;
  std::string_view codec = "none";

  std::string ToString() const {
    return absl::StrCat("stage ", stage, ", ", ranks, " ranks, offload ",
                        static_cast<int>(offload), in_file ? " to file" : "",
                        ", codec ", codec);
  }
};

// Every valid combination, in the order of the choices.
std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int stage = 0; stage < 4; ++stage) {
    for (const int64_t ranks : kRanks) {
      for (int offload = 0; offload < 5; ++offload) {
        const auto choice = static_cast<Offload>(offload);
        if (!Applies(stage, choice)) continue;
        for (const bool in_file : {false, true}) {
          for (const std::string_view codec : kLossless) {
            const bool moves = choice != Offload::kNone;
            if (!moves && (in_file || codec != "none")) continue;
            cases.push_back({stage, ranks, choice, in_file, codec});
          }
        }
      }
    }
  }
  return cases;
}

// The pairs of choices that a case covers.
std::vector<std::pair<int, std::string>> PairsOf(const Case& c) {
  const std::string choices[] = {
      absl::StrCat("s", c.stage), absl::StrCat("r", c.ranks),
      absl::StrCat("o", static_cast<int>(c.offload)),
      c.in_file ? "file" : "host", std::string(c.codec)};
  std::vector<std::pair<int, std::string>> pairs;
  for (int i = 0; i < 5; ++i) {
    for (int j = i + 1; j < 5; ++j) {
      pairs.push_back({5 * i + j, absl::StrCat(choices[i], choices[j])});
    }
  }
  return pairs;
}

// Repeatedly takes the case with the most new pairs, until no pair is new.
std::vector<Case> CoveringCases() {
  std::vector<Case> left = AllCases();
  std::vector<Case> taken;
  std::map<std::pair<int, std::string>, bool> seen;
  while (true) {
    size_t best = 0, most = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      size_t fresh = 0;
      for (const auto& pair : PairsOf(left[i])) fresh += 1 - seen.count(pair);
      if (fresh > most) {
        most = fresh;
        best = i;
      }
    }
    if (most == 0) return taken;
    for (const auto& pair : PairsOf(left[best])) seen[pair] = true;
    taken.push_back(left[best]);
  }
}

#ifdef TESSERA_FULL_MATRIX
constexpr bool kWhole = true;
#else
constexpr bool kWhole = false;
#endif

std::vector<Case> Cases() { return kWhole ? AllCases() : CoveringCases(); }

testing::ToyOptions ToyOf(int stage, int64_t ranks) {
  testing::ToyOptions toy;
  toy.ranks = ranks;
  toy.reproducible = true;
  toy.state.stage = stage;
  toy.state.adamw = {.learning_rate = 0.01, .weight_decay = 0.1};
  toy.state.decayed = DecayedParameters::kMatrices;
  toy.state.bucket_bytes = 300;
  toy.state.persistence_threshold = 10;
  return toy;
}

void SetTiers(Offload offload, offload::MemoryTier* tier,
              ShardedStateOptions& options) {
  const bool all = offload == Offload::kAll;
  if (all || offload == Offload::kOptimizer) options.optimizer_tier = tier;
  if (options.stage >= 2 && (all || offload == Offload::kGradients)) {
    options.gradient_tier = tier;
  }
  if (options.stage == 3 && (all || offload == Offload::kParameters)) {
    options.parameter_tier = tier;
  }
}

// Null if the codec is not in this build.
std::shared_ptr<offload::MemoryTier> TierOf(const Case& c) {
  std::shared_ptr<offload::MemoryTier> base;
  auto accounting =
      std::make_shared<offload::Accounting>("tier", offload::kUnlimited);
  if (c.in_file) {
    offload::FileTierOptions options;
    options.path = ::testing::TempDir();
    options.piece_bytes = 4096;
    options.bounce_bytes = 16 * 4096;
    options.space.growth_bytes = 0;
    auto file = offload::FileTier::Create(std::move(accounting), options);
    EXPECT_THAT(file.status(), IsOk());
    base = *std::move(file);
  } else {
    base = std::make_shared<offload::HostTier>(std::move(accounting));
  }
  if (c.codec == "none") return base;
  auto codec = offload::CreateCodec(c.codec);
  if (absl::IsUnimplemented(codec.status())) return nullptr;
  EXPECT_THAT(codec.status(), IsOk());
  return std::make_shared<offload::CompressedTier>(*std::move(codec),
                                                   std::move(base));
}

// The same bits on every rank.
Values TrainOk(const testing::ToyOptions& toy) {
  Values values;
  for (const auto& result : testing::Train(toy)) {
    EXPECT_THAT(result.status(), IsOk());
    if (!result.ok()) return {};
    if (values.empty()) values = result->values;
    EXPECT_EQ(result->values, values);
  }
  return values;
}

// Trained once per process.
const Values& InMemory(int stage, int64_t ranks) {
  static std::map<std::pair<int, int64_t>, Values>& known =
      *new std::map<std::pair<int, int64_t>, Values>();
  const auto [it, is_new] = known.insert({{stage, ranks}, {}});
  if (is_new) it->second = TrainOk(ToyOf(stage, ranks));
  return it->second;
}

void ExpectNear(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t p = 0; p < actual.size(); ++p) {
    ASSERT_EQ(actual[p].size(), expected[p].size());
    for (size_t e = 0; e < actual[p].size(); ++e) {
      ASSERT_NEAR(actual[p][e], expected[p][e],
                  1e-6 * (1 + std::abs(expected[p][e])))
          << "parameter " << p << " element " << e;
    }
  }
}

class TrainingMatrixTest : public ::testing::TestWithParam<Case> {};

TEST_P(TrainingMatrixTest, EqualsOneRankWithoutZero) {
  const Case& c = GetParam();
  SCOPED_TRACE(c.ToString());
  testing::ToyOptions toy = ToyOf(c.stage, c.ranks);
  const auto tier = TierOf(c);
  if (tier == nullptr) GTEST_SKIP() << "no such codec in this build";
  SetTiers(c.offload, tier.get(), toy.state);
  const Values values = TrainOk(toy);
  ExpectNear(values, InMemory(0, 1));
  // A single rank with gradients in memory accumulates micro-batches in place.
  if (c.ranks > 1 || toy.state.gradient_tier == nullptr) {
    EXPECT_EQ(values, InMemory(c.stage, c.ranks));
  }
  EXPECT_TRUE(tier->Keys().empty());
}

INSTANTIATE_TEST_SUITE_P(All, TrainingMatrixTest, ::testing::ValuesIn(Cases()));

class LossyTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(LossyTest, EveryReadIsWithinTheBoundOfItsCodec) {
  for (const Offload offload : {Offload::kParameters, Offload::kGradients}) {
    std::shared_ptr<const offload::Codec> codec =
        *offload::CreateCodec(GetParam());
    testing::BoundTier tier(codec);
    testing::ToyOptions toy = ToyOf(3, 3);
    toy.parts = 3;
    // Only parameters with master weights may be rounded.
    if (offload == Offload::kParameters) toy.dtype = DType::kBF16;
    if (codec->IsLossless(DType::kBF16) && toy.dtype == DType::kBF16) continue;
    SetTiers(offload, &tier, toy.state);
    for (const auto& result : testing::Train(toy)) {
      ASSERT_THAT(result.status(), IsOk());
      for (const std::vector<double>& values : result->values) {
        for (const double value : values) EXPECT_TRUE(std::isfinite(value));
      }
    }
    EXPECT_GT(tier.elements(), 5'000);
    EXPECT_GT(tier.changed(), tier.elements() / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LossyTest, ::testing::ValuesIn(kLossy));

}  // namespace
}  // namespace tessera::zero3
