#include "tools/comm_bench/bench_options.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tools {

namespace {

using collectives::OpKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BenchOptionsTest, SizesGrowByTheFactorUpToTheLargest) {
  EXPECT_THAT(ParseOptions({"-b", "8", "-e600", "-f=4"})->sizes,
              ElementsAre(8, 32, 128, 512));
  EXPECT_THAT(ParseOptions({"-b8", "-e8"})->sizes, ElementsAre(8));
}

TEST(BenchOptionsTest, ParsesListsAndShortFlags) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const BenchOptions options,
      ParseOptions({"--engine=shared_memory,mpi", "--np=2,4,8",
                    "--op=all_reduce,barrier",
                    "--algorithm=engine,ring,adaptive", "-d", "f32,bf16", "-o",
                    "max", "-n", "20", "-w", "5", "-c", "0"}));
  EXPECT_THAT(options.engines, ElementsAre("shared_memory", "mpi"));
  EXPECT_THAT(options.worlds, ElementsAre(2, 4, 8));
  EXPECT_THAT(options.ops, ElementsAre(OpKind::kAllReduce, OpKind::kBarrier));
  EXPECT_THAT(options.algorithms, ElementsAre("engine", "ring", "adaptive"));
  EXPECT_THAT(options.dtypes, ElementsAre(DType::kF32, DType::kBF16));
  EXPECT_EQ(options.reduction, collectives::ReduceOp::kMax);
  EXPECT_EQ(options.iterations, 20);
  EXPECT_EQ(options.warmup, 5);
  EXPECT_FALSE(options.check);
  EXPECT_EQ(ParseOptions({"--op=all"})->ops.size(),
            collectives::kCollectiveKinds.size());
}

TEST(BenchOptionsTest, RejectsInvalidValuesWithFlagAndValue) {
  for (const std::string bad : {"--min_bytes=0",    "--min_bytes=1GiB",
                                "--max_bytes=-1",   "--factor=1",
                                "--iterations=-1",  "--warmup=-5",
                                "--group_size=-2",  "--engine=mpi,",
                                "--engine=mpi,mpi", "--np=",
                                "--np=2,x",         "--np=0",
                                "--np=100000",      "--op=send",
                                "--op=sum",         "--algorithm=rings",
                                "--dtype=f31",      "--dtype=fp8_e4m3",
                                "--reduction=mean", "--device=gpu"}) {
    const absl::Status status = ParseOptions({bad}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()),
                ::testing::StartsWith(bad + ": "))
        << bad;
  }
}

TEST(BenchOptionsTest, IrreducibleTypesCanBeCopied) {
  EXPECT_THAT(ParseOptions({"--dtype=fp8_e4m3", "--op=all_gather,broadcast"}),
              IsOk());
}

TEST(BenchOptionsTest, RegretCoversAllAlgorithms) {
  EXPECT_THAT(ParseOptions({"--regret", "--algorithm=ring"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--algorithm=ring")));
  EXPECT_THAT(ParseOptions({"--regret"})->algorithms, ElementsAre("all"));
}

TEST(BenchOptionsTest, TheEngineFollowsTheDevice) {
  EXPECT_THAT(ParseOptions({})->engines, ElementsAre("shared_memory"));
  EXPECT_TRUE(ParseOptions({})->bound);
  TESSERA_ASSERT_OK_AND_ASSIGN(const BenchOptions emulated,
                               ParseOptions({"--device=emulated"}));
  EXPECT_THAT(emulated.engines, ElementsAre("cuda"));
  EXPECT_EQ(emulated.device, "emulated");
  EXPECT_FALSE(emulated.bound);
}

TEST(BenchOptionsTest, DevicesRejectFlagsOfTheHost) {
  EXPECT_THAT(ParseOptions({"--device=gpu"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--device=gpu: expected cpu, emulated or cuda"));
  for (const std::string flag :
       {"--registered", "--reproducible", "--overlap", "--regret",
        "--group_size=2", "--algorithm=ring"}) {
    EXPECT_THAT(ParseOptions({"--device=cuda", flag}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(flag.substr(0, flag.find('=')))));
  }
}

}  // namespace

}  // namespace tessera::tools
