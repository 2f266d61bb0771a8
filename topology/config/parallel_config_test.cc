#include "topology/config/parallel_config.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

ParallelConfig FromSizes(std::string_view text) {
  const auto config = ParallelConfig::FromSizes(text);
  EXPECT_THAT(config, IsOk());
  return *config;
}

std::vector<std::string> Lines(const ParallelConfig& config) {
  std::vector<std::string> lines;
  for (const ConfigProblem& problem : config.Problems()) {
    lines.push_back(problem.ToString());
  }
  return lines;
}

TEST(ParallelConfigTest, DefaultIsOneValidRank) {
  const ParallelConfig config;
  TESSERA_EXPECT_OK(config.Validate());
  TESSERA_EXPECT_OK(config.ValidateForWorld(1));
  EXPECT_THAT(config.WorldSize(), IsOkAndHolds(1));
  EXPECT_THAT(config.Stages(), IsOkAndHolds(1));
}

TEST(ParallelConfigTest, ReadsAndPrintsCompactSizes) {
  ParallelConfig config = FromSizes("tp4,dp=2,ep8");
  EXPECT_EQ(config.dp, AxisSize(2));
  EXPECT_EQ(config.tp, AxisSize(4));
  EXPECT_EQ(config.pp, AxisSize(1));
  EXPECT_EQ(config.ep, AxisSize(8));
  EXPECT_EQ(config.Sizes(), "dp2,pp1,tp4,ep8");
  EXPECT_EQ(FromSizes("cp3").Sizes(), "dp1,pp1,tp1,cp3");
  config.layers = 9;
  TESSERA_ASSERT_OK(config.SetSizes("pp3"));
  EXPECT_EQ(config.Sizes(), "dp1,pp3,tp1");
  EXPECT_EQ(config.layers, 9);
}

TEST(ParallelConfigTest, RefusedSizesChangeNothing) {
  ParallelConfig config = FromSizes("dp3");
  EXPECT_THAT(config.SetSizes("tp2,zp2"),
              Refused(HasSubstr("\"zp\""), HasSubstr("dp, tp, pp, cp, ep")));
  EXPECT_THAT(config.SetSizes(""), Refused());
  EXPECT_THAT(config.SetSizes("dp0"), Refused());
  EXPECT_EQ(config, FromSizes("dp3"));
}

TEST(ParallelConfigTest, ExpertsAddNoRanks) {
  EXPECT_THAT(FromSizes("dp4,tp2,ep8").WorldSize(), IsOkAndHolds(8));
  EXPECT_THAT(FromSizes("dp4,tp2,cp3,pp5").WorldSize(), IsOkAndHolds(120));
}

TEST(ParallelConfigTest, SizesThatMakeNoWorldAreRefused) {
  ParallelConfig config;
  config.dp = AxisSize(0);
  EXPECT_THAT(config.WorldSize(), Refused(HasSubstr("dp is 0")));
  config.dp = config.tp = AxisSize(kMax);
  EXPECT_THAT(config.WorldSize(), Refused(HasSubstr("2^63-1")));
  EXPECT_THAT(config.MakeMesh(), Refused(HasSubstr("2^63-1")));
  config.pp = AxisSize(-2);
  EXPECT_THAT(config.Stages(), Refused(HasSubstr("-2 ranks")));
}

TEST(ParallelConfigTest, MeshHasTheAxesInTheirOrder) {
  ParallelConfig config = FromSizes("dp2,pp3,tp4");
  TESSERA_ASSERT_OK_AND_ASSIGN(Mesh mesh, config.MakeMesh());
  EXPECT_EQ(mesh.order(), "tp-dp-pp");
  EXPECT_EQ(mesh.world_size(), 24);
  EXPECT_THAT(mesh.CoordinateOf(Rank(13), "pp"), IsOkAndHolds(1));
  config.order = "pp-tp-cp-dp";
  config.cp = AxisSize(2);
  TESSERA_ASSERT_OK_AND_ASSIGN(mesh, config.MakeMesh());
  EXPECT_EQ(mesh.order(), "pp-tp-cp-dp");
  EXPECT_THAT(ParallelConfig().MakeMesh(), IsOk());
}

TEST(ParallelConfigTest, MeshHasExpertAxesWhereThereAreExperts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                               FromSizes("dp4,tp2,pp2,ep8").MakeMesh());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Groups groups, mesh.GroupsAlong("ep"));
  EXPECT_EQ(groups.count(), 2);
  EXPECT_EQ(groups.size(), 8);
  EXPECT_THAT(FromSizes("dp2").MakeMesh()->SizeOf("ep"), Not(IsOk()));
}

TEST(ParallelConfigTest, MeshNeedsOnlySizesAndOrder) {
  ParallelConfig config = FromSizes("pp4");
  config.layers = 0;
  config.timeout = absl::ZeroDuration();
  TESSERA_EXPECT_OK(config.MakeMesh());
  config.order = "tp-dp";
  EXPECT_THAT(config.MakeMesh(), Refused(HasSubstr("misses pp")));
}

TEST(ParallelConfigTest, EveryProblemIsReportedAtOnceWithItsFix) {
  ParallelConfig config = FromSizes("dp2,pp4,tp2,ep3");
  config.order = "tp-dp-tp-qp";
  config.layers = 2;
  config.micro_batch_size = 0;
  config.micro_batches = 0;
  config.schedule = ScheduleKind::kZbV;
  config.device_memory = ByteSize(-1);
  config.timeout = absl::ZeroDuration();
  config.precision = static_cast<Precision>(9);
  EXPECT_THAT(
      Lines(config),
      ElementsAre(
          "ep is 3; allowed: a divisor of dp * cp * tp = 4: 1, 2, 4; fix: set "
          "ep to 2 or 4",
          "order is \"tp-dp-tp-qp\", which names one twice; allowed: tp, cp, "
          "ep, dp and pp, each once, joined by -; fix: set order to "
          "tp-dp-cp-ep-pp",
          "pp is 4; allowed: exactly 1 with 2 layers and chunks 2; fix: set pp "
          "to 1, or layers to at least 8",
          "micro_batch_size is 0; allowed: at least 1; fix: set "
          "micro_batch_size to 1 or more",
          "micro_batches is 0; allowed: at least 1; fix: set micro_batches to "
          "1",
          "chunks is 1; allowed: exactly 2 with schedule zb_v; fix: set chunks "
          "to 2",
          "precision is 9; allowed: fp32, bf16, fp16; fix: set precision to "
          "fp32",
          "device_memory is -1B; allowed: 0 (no limit) or more, such as 80GiB; "
          "fix: set device_memory to 0 or to what a device has",
          "timeout is 0; allowed: more than 0s, or inf to wait for ever; fix: "
          "set timeout to 30s"));
  EXPECT_THAT(config.Validate(),
              Refused(HasSubstr("9 problems with the parallel configuration:"
                                "\n1. ep is 3;"),
                      HasSubstr("\n9. timeout is 0;")));
}

TEST(ParallelConfigTest, OneProblemIsOneLine) {
  ParallelConfig config;
  config.layers = 0;
  EXPECT_THAT(config.Validate(),
              Refused("1 problem with the parallel configuration:\n1. layers "
                      "is 0; allowed: at least 1; fix: set layers to 1 or "
                      "more"));
}

TEST(ParallelConfigTest, TooFewLayersForThePipeline) {
  ParallelConfig config = FromSizes("pp5");
  config.layers = 4;
  EXPECT_THAT(Lines(config),
              ElementsAre("pp is 5; allowed: from 1 to 4 with 4 layers and "
                          "chunks 1; fix: set pp to 4, or layers to at least "
                          "5"));
  config = FromSizes("pp2");
  config.layers = 7;
  config.micro_batches = 2;
  config.schedule = ScheduleKind::kInterleaved1F1B;
  config.chunks = 4;
  EXPECT_THAT(Lines(config),
              ElementsAre("chunks is 4; allowed: from 1 to 3 with 7 layers and "
                          "pp 2; fix: set chunks to 3, or layers to at least "
                          "8"));
  config.layers = 1;
  EXPECT_THAT(Lines(config),
              ElementsAre("layers is 1; allowed: at least 8, one for each of "
                          "pp * chunks stages; fix: set layers to 8 or more"));
}

TEST(ParallelConfigTest, DualPipeWantsPairs) {
  ParallelConfig config = FromSizes("pp3");
  config.layers = 8;
  config.schedule = ScheduleKind::kDualPipe;
  config.micro_batches = 7;
  EXPECT_THAT(
      Lines(config),
      ElementsAre("pp is 3; allowed: an even number with schedule dualpipe; "
                  "fix: set pp to 2 or 4"));
}

TEST(ParallelConfigTest, FixedChunksAreFixed) {
  ParallelConfig config = FromSizes("pp2");
  config.layers = 12;
  for (const ScheduleKind kind :
       {ScheduleKind::kZbV, ScheduleKind::kVHalf, ScheduleKind::kVMin,
        ScheduleKind::kDualPipeV}) {
    config.schedule = kind;
    for (const int64_t chunks : {1, 2, 3}) {
      config.chunks = chunks;
      EXPECT_EQ(config.Validate().ok(), chunks == 2) << EnumName(kind);
    }
  }
  for (const ScheduleKind kind :
       {ScheduleKind::kGpipe, ScheduleKind::k1F1B, ScheduleKind::kZbH1,
        ScheduleKind::kZbH2, ScheduleKind::kDualPipe}) {
    config.schedule = kind;
    for (const int64_t chunks : {1, 2, 3}) {
      config.chunks = chunks;
      EXPECT_EQ(config.Validate().ok(), chunks == 1) << EnumName(kind);
    }
  }
}

// Fewer than ranks, and no multiple of them: the generators take any.
TEST(ParallelConfigTest, AnyNumberOfMicroBatchesFromOneOnIsAllowed) {
  for (const auto& [name, kind] : EnumNames<ScheduleKind>::kTable) {
    ParallelConfig config = FromSizes("pp4");
    config.layers = 16;
    config.schedule = kind;
    config.chunks = TraitsOf(kind).min_chunks;
    for (const int64_t micro_batches : {1, 2, 3, 4, 5, 7, 9, 1000}) {
      config.micro_batches = micro_batches;
      TESSERA_EXPECT_OK(config.Validate()) << name;
    }
    config.micro_batches = 0;
    EXPECT_THAT(Lines(config),
                ElementsAre("micro_batches is 0; allowed: at least 1; fix: set "
                            "micro_batches to 1"))
        << name;
  }
}

TEST(ParallelConfigTest, GroupsOfExpertsMayNotReachAcrossThePipelineUnevenly) {
  ParallelConfig config = FromSizes("tp4,pp2,dp3,ep6");
  config.layers = 2;
  TESSERA_EXPECT_OK(config.Validate());
  config.order = "tp-pp-dp";
  EXPECT_THAT(Lines(config),
              ElementsAre("ep is 6; allowed: a divisor of dp * cp * tp = 12 "
                          "whose groups do not reach across pp unevenly: 1, 2, "
                          "4, 12; fix: set ep to 4 or 12"));
}

TEST(ParallelConfigTest, AWorldThatDoesNotFitNamesTheDpThatWould) {
  ParallelConfig config = FromSizes("dp2,tp2,pp2");
  config.layers = 2;
  TESSERA_EXPECT_OK(config.ValidateForWorld(8));
  EXPECT_THAT(config.ValidateForWorld(16),
              Refused(HasSubstr("dp is 2; allowed: 4 for a world of 16 ranks, "
                                "as cp * tp * pp = 4; fix: set dp to 4, or "
                                "start 8 ranks")));
  EXPECT_THAT(
      config.ValidateForWorld(10),
      Refused(HasSubstr("world_size is 10; allowed: dp * cp * tp * pp "
                        "= 8; no dp fits, as cp * tp * pp = 4 does not "
                        "divide 10; fix: set world_size to 8, or choose cp")));
  EXPECT_THAT(config.ValidateForWorld(3), Refused(HasSubstr("no dp fits")));
  EXPECT_THAT(config.ValidateForWorld(0),
              Refused(HasSubstr("world_size is 0; allowed: at least 1")));
  config.dp = AxisSize(0);
  EXPECT_THAT(config.ValidateForWorld(8),
              Refused(HasSubstr("1 problem"), HasSubstr("dp is 0")));
  EXPECT_THAT(config.ValidateForWorld(-1), Refused(HasSubstr("2 problems")));
}

TEST(ParallelConfigTest, ProductsThatOverflowAreOneProblem) {
  ParallelConfig config = FromSizes("dp3");
  config.tp = AxisSize(kMax / 2);
  EXPECT_THAT(Lines(config),
              ElementsAre("tp is 4611686018427387903; allowed: at most "
                          "3074457345618258602, so that dp * cp * tp * pp <= "
                          "2^63-1; fix: set tp to 3074457345618258602 or "
                          "less"));
  config.dp = config.cp = config.tp;
  ASSERT_EQ(config.Problems().size(), 1u);
  EXPECT_EQ(config.Problems()[0].replacement, std::nullopt);
  EXPECT_THAT(Lines(config)[0], HasSubstr("make several"));
}

TEST(ParallelConfigTest, HugeSizesAreCheckedWithoutOverflow) {
  for (const auto& [name, kind] : EnumNames<ScheduleKind>::kTable) {
    ParallelConfig config;
    config.schedule = kind;
    config.pp = AxisSize(kMax);
    config.chunks = kMax;
    config.layers = kMax;
    config.micro_batches = kMax;
    EXPECT_THAT(config.Problems(), Not(IsEmpty())) << name;
    config.layers = 1;
    EXPECT_THAT(config.Problems(), Not(IsEmpty())) << name;
    EXPECT_THAT(config.ProblemsForWorld(kMax), Not(IsEmpty())) << name;
  }
}

TEST(ParallelConfigTest, LongOrUnprintableOrdersAreCutAndEscaped) {
  ParallelConfig config;
  config.order = "tp-dp-pp-\x01" + std::string(5000, 'x');
  EXPECT_THAT(config.Validate(),
              Refused(HasSubstr("\\x01xxx"), HasSubstr("more than 64"),
                      Not(HasSubstr(std::string(64, 'x')))));
}

}  // namespace
}  // namespace tessera::topology
