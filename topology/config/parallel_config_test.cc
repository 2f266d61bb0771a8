#include "topology/config/parallel_config.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

// Every field differs from its default.
ParallelConfig Others() {
  return {.mesh = {.dp = 4,
                   .pp = 3,
                   .cp = 2,
                   .tp = 5,
                   .dp_replicate = 2,
                   .ep = 4,
                   .order = {MeshAxis::kPp, MeshAxis::kTp, MeshAxis::kDp,
                             MeshAxis::kCp}},
          .layers = 7,
          .split = {.counts = {1, 0, 3, 1, 1, 1}},
          .schedule = "a \"b\"\n",
          .chunks = 2,
          .micro_batch = 3,
          .memory_strategy = MemoryStrategy::kExtreme,
          .strategy = CommunicationStrategy::kTree,
          .dtype = DType::kBF16,
          .fp8 = true,
          .memory_limit = ByteSize((int64_t{3} << 30) + 7),
          .device_budget = ByteSize(1),
          .timeout = absl::Seconds(5)};
}

std::string TextsOf(const ParallelConfig& config,
                    std::optional<int64_t> world_size = {}) {
  std::string text;
  for (const ConfigProblem& problem : config.Problems(world_size)) {
    text += problem.ToString() + "\n";
  }
  return text;
}

TEST(ParallelConfigTest, DefaultsAreOneRankAndValid) {
  const ParallelConfig config;
  EXPECT_EQ(config.mesh.world_size(), 1);
  TESSERA_EXPECT_OK(config.Validate());
  TESSERA_EXPECT_OK(config.Validate(1));
  TESSERA_EXPECT_OK(Others().Validate(4 * 3 * 2 * 5));
  ParallelConfig other;
  other.mesh.dp_replicate = 2;
  EXPECT_NE(config, other);
}

TEST(ParallelConfigTest, RoundTripsThroughJson) {
  const ParallelConfig others = Others(), defaults;
  for (const std::string_view name : ParallelConfig::FieldNames()) {
    EXPECT_NE(others.Field(name), defaults.Field(name)) << name;
    EXPECT_THAT(others.ToString(), HasSubstr(std::string(name) + "="));
  }
  EXPECT_THAT(ParallelConfig::FromJson(others.ToJson()), IsOkAndHolds(others));
  EXPECT_THAT(ParallelConfig::FromJson(defaults.ToJson()),
              IsOkAndHolds(defaults));
  EXPECT_THAT(ParallelConfig::FromJson("{}"), IsOkAndHolds(defaults));
  EXPECT_THAT(ParallelConfig::FromJson(R"({"dtype": "fp16", "layers": 3})"),
              IsOkAndHolds(ParallelConfig{.layers = 3, .dtype = DType::kF16}));
}

TEST(ParallelConfigTest, JsonErrorsNameEveryKey) {
  EXPECT_THAT(
      ParallelConfig::FromJson(
          R"({"mesh": "dp0", "layer": 3, "chunks": "2", "schedule": 1,
              "dtype": "fp4", "micro_batch": 1.5, "memory_limit": "0",
              "order": "tp-dp", "layers_per_stage": "1,",
              "memory_strategy": "standart"})"),
      Refused(
          HasSubstr("10 problems with the parallel configuration:\n"),
          HasSubstr("mesh=dp0: axis \"dp\" has size 0"),
          HasSubstr("layer=3: is not a field; the nearest is layers"),
          HasSubstr("chunks=2: must be a whole number\n"),
          HasSubstr("schedule=1: must be a text in quotes"),
          HasSubstr("dtype=fp4: must be one of fp32, bf16, fp16, fp8, such"),
          HasSubstr("micro_batch=1.5: must be a whole number or"),
          HasSubstr("memory_limit=0: must be a number of bytes above 0"),
          HasSubstr("order=tp-dp: order \"tp-dp\" lacks axis \"cp\""),
          HasSubstr("layers_per_stage=1,: \"1,\" is not even, cost, or"),
          HasSubstr("must be one of basic, standard, aggressive, extreme, such "
                    "as memory_strategy=standard")));
  EXPECT_THAT(ParallelConfig::FromJson("[]"), Refused(HasSubstr("an object")));
  EXPECT_THAT(ParallelConfig::FromJson(R"({"chunks": 1, "chunks": 2})"),
              Refused(HasSubstr("chunks")));
  EXPECT_FALSE(ParallelConfig::FromJson("{").ok());
}

TEST(ParallelConfigTest, FailedSetFieldChangesNothing) {
  ParallelConfig config = Others();
  for (const std::string_view name : ParallelConfig::FieldNames()) {
    const bool is_text = config.Field(name).index() == 1;
    const ConfigValue other_type =
        is_text ? ConfigValue(int64_t{1}) : ConfigValue("1");
    EXPECT_TRUE(config.SetField(name, other_type).has_value()) << name;
    if (is_text && name != "schedule") {
      EXPECT_TRUE(config.SetField(name, "!").has_value()) << name;
    }
  }
  EXPECT_EQ(config, Others());
}

TEST(ParallelConfigTest, ReportsEveryProblemAtOnce) {
  ParallelConfig config = {
      .mesh = {.dp = 4, .pp = 2, .dp_replicate = 3, .ep = 3},
      .layers = -1,
      .chunks = 0,
      .micro_batch = 0,
      .memory_strategy = static_cast<MemoryStrategy>(9),
      .strategy = static_cast<CommunicationStrategy>(9),
      .dtype = DType::kF64,
      .memory_limit = ByteSize(-1),
      .device_budget = ByteSize(-1),
      .timeout = absl::InfiniteDuration()};
  config.mesh.order[1] = MeshAxis::kTp;
  EXPECT_THAT(
      config.Validate(),
      Refused(HasSubstr("11 problems"), HasSubstr("\norder=tp-tp-dp-pp: must"),
              HasSubstr("dp_replicate3 does not divide dp4; ep3 does not"),
              HasSubstr("such as mesh=dp2,pp2,tp2"),
              HasSubstr("\nlayers=-1: must be at least 0, such as layers=0"),
              HasSubstr("\nchunks=0: must be at least 1, such as chunks=1"),
              HasSubstr("\nmicro_batch=0: must be at least 1"),
              HasSubstr("\ntimeout_seconds=9223372036854775807: must be at "
                        "most 1000000"),
              HasSubstr("\nmemory_strategy=: must be one of basic"),
              HasSubstr("\nstrategy=: must be one of all_reduce"),
              HasSubstr("\ndtype=f64: must be one of fp32, bf16, fp16, fp8, "
                        "such as dtype=fp32"),
              HasSubstr("\nmemory_limit=-1"), HasSubstr("\ndevice_budget=-1")));
}

TEST(ParallelConfigTest, WorldMustHaveTheRanksOfTheMesh) {
  ParallelConfig config = {.mesh = {.dp = 4, .tp = 2, .dp_replicate = 2}};
  EXPECT_EQ(TextsOf(config, 8), "");
  EXPECT_EQ(TextsOf(config, 16),
            "mesh=dp_replicate2,dp_shard2,tp2: has 8 ranks, and the job 16; "
            "use as many as the job has, such as "
            "mesh=dp_replicate2,dp_shard4,tp2\n");
  for (const int64_t no_multiple : {0, -8, 6, 1}) {
    EXPECT_EQ(TextsOf(config, no_multiple),
              "mesh=dp_replicate2,dp_shard2,tp2: has 8 ranks, and the job " +
                  std::to_string(no_multiple) +
                  "; use as many as the job has\n");
  }
}

TEST(ParallelConfigTest, EachStageCanHaveALayer) {
  ParallelConfig config = {.mesh = {.pp = 3}, .layers = 7, .chunks = 2};
  EXPECT_THAT(config.LayersPerStage(),
              IsOkAndHolds(ElementsAre(2, 1, 1, 1, 1, 1)));
  EXPECT_EQ(TextsOf(config), "");
  config.layers = 5;
  EXPECT_EQ(TextsOf(config),
            "mesh=pp3: pp 3 x chunks 2 are 6 stages, and the model has 5 "
            "layers; give at most as many stages, such as mesh=pp2\n");
  config.layers = 1;
  EXPECT_THAT(TextsOf(config), HasSubstr("as many stages\n"));
  config.layers = 0;  // Unknown.
  EXPECT_EQ(TextsOf(config), "");
  config.mesh.pp = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(TextsOf(config), HasSubstr("ranks; at most"));
}

TEST(ParallelConfigTest, CountsMustFitStagesAndLayers) {
  ParallelConfig config = {.mesh = {.pp = 2}, .split = {.counts = {3, 4}}};
  EXPECT_EQ(TextsOf(config), "");
  config.layers = 7;
  EXPECT_EQ(TextsOf(config), "");
  EXPECT_THAT(config.LayersPerStage(), IsOkAndHolds(ElementsAre(3, 4)));
  config.layers = 8;
  EXPECT_EQ(TextsOf(config),
            "layers_per_stage=3,4: the stages have 7 of 8 layers; give counts "
            "that add up to 8, such as layers_per_stage=even\n");
  config.layers = 0;
  config.mesh.pp = 3;
  EXPECT_THAT(TextsOf(config), HasSubstr("there are 3 stages, and 2 numbers"));
}

TEST(ParallelConfigTest, Fp8NeedsBf16) {
  EXPECT_EQ(TextsOf({.dtype = DType::kBF16, .fp8 = true}), "");
  EXPECT_THAT(TextsOf({.fp8 = true}), HasSubstr("such as dtype=fp8"));
}

TEST(ParallelConfigFuzzTest, MutatedJsonRoundTripsOrFails) {
  TextMutator mutator(
      {Others().ToJson(), R"({"mesh": "dp2,pp2", "layers": 8})"},
      {"\"", ",", "{", "-1", "null", "dp_shard2", "9223372036854775807"}, 5);
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto config = ParallelConfig::FromJson(mutator.Next());
    if (!config.ok()) {
      ASSERT_THAT(config, Refused());
      continue;
    }
    ++valid;
    ASSERT_THAT(ParallelConfig::FromJson(config->ToJson()),
                IsOkAndHolds(*config));
    config->Problems(7);
  }
  EXPECT_GT(valid, 500);
}

}  // namespace
}  // namespace tessera::topology
