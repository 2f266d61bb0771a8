#include "tools/comm_bench/bench_options.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tools {

namespace {

using collectives::OpKind;
using ::testing::AllOf;
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
                    "--algorithm=engine,ring,prepared", "-d", "f32,bf16", "-o",
                    "max", "-n", "20", "-w", "5", "-c", "0"}));
  EXPECT_THAT(options.engines, ElementsAre("shared_memory", "mpi"));
  EXPECT_THAT(options.worlds, ElementsAre(2, 4, 8));
  EXPECT_THAT(options.ops, ElementsAre(OpKind::kAllReduce, OpKind::kBarrier));
  EXPECT_THAT(options.algorithms, ElementsAre("engine", "ring", "prepared"));
  EXPECT_THAT(options.dtypes, ElementsAre(DType::kF32, DType::kBF16));
  EXPECT_THAT(options.reductions, ElementsAre(collectives::ReduceOp::kMax));
  EXPECT_EQ(options.iterations, 20);
  EXPECT_EQ(options.warmup, 5);
  EXPECT_FALSE(options.check);
  EXPECT_EQ(ParseOptions({"--op=all"})->ops.size(),
            collectives::kCollectiveKinds.size());
}

TEST(BenchOptionsTest, RejectsInvalidValuesWithFlagAndValue) {
  for (const std::string bad : {"--min_bytes=-1",   "--min_bytes=1GiB",
                                "--max_bytes=-1",   "--factor=-1",
                                "--iterations=-1",  "--warmup=-5",
                                "--engine=mpi,",    "--ngpus=17",
                                "--engine=mpi,mpi", "--np=",
                                "--np=2,x",         "--np=0",
                                "--np=100000",      "--op=send",
                                "--root=2",         "--algorithm=rings",
                                "--root=-1",        "--check=-1",
                                "--dtype=f31",      "--dtype=fp8_e4m3",
                                "--reduction=mean", "--device=gpu"}) {
    const absl::Status status = ParseOptions({bad}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()),
                ::testing::StartsWith(bad + ": "))
        << bad;
  }
}

TEST(BenchOptionsTest, SizesGrowByTheStepWithFactorOne) {
  EXPECT_THAT(ParseOptions({"-b", "8", "-e", "40", "-i", "16"})->sizes,
              ElementsAre(8, 24, 40));
  EXPECT_THAT(ParseOptions({"-b", "1M", "-e", "3M", "-f", "1"})->sizes,
              ElementsAre(1 << 20, 2 << 20, 3 << 20));
  EXPECT_THAT(ParseOptions({"-b8", "-e32", "-i8", "-f2"})->sizes,
              ElementsAre(8, 16, 32));
  EXPECT_THAT(ParseOptions({"-b0", "-e16", "-i8"})->sizes,
              ElementsAre(0, 8, 16));
  EXPECT_THAT(ParseOptions({"-b0", "-e4", "-f2"})->sizes,
              ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(ParseOptions({"-b0", "-e0"})->sizes, ElementsAre(0));
  EXPECT_THAT(ParseOptions({"-b0", "-e0", "-f1"})->sizes, ElementsAre(0));
  EXPECT_THAT(ParseOptions({"-b", "8", "-e", "1G", "-i", "1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--step_bytes=1B: gives more than")));
  EXPECT_THAT(ParseOptions({"-b", "9", "-e", "8", "-f", "1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--min_bytes=9B")));
}

TEST(BenchOptionsTest, ParsesLongNamesOfNcclTests) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const BenchOptions options,
      ParseOptions({"--minbytes=16", "--maxbytes", "64", "--stepfactor=2",
                    "--iters=20", "--warmup_iters", "5", "--check", "0", "--op",
                    "max", "--datatype=half", "--root=1", "--blocking", "1",
                    "--ngpus=1", "--nthreads", "2"}));
  EXPECT_THAT(options.sizes, ElementsAre(16, 32, 64));
  EXPECT_EQ(options.iterations, 20);
  EXPECT_EQ(options.warmup, 5);
  EXPECT_FALSE(options.check);
  EXPECT_THAT(options.reductions, ElementsAre(collectives::ReduceOp::kMax));
  EXPECT_THAT(options.ops, ElementsAre(OpKind::kAllReduce));
  EXPECT_THAT(options.dtypes, ElementsAre(DType::kF16));
  EXPECT_EQ(options.root, 1);
  EXPECT_TRUE(options.blocking);
  EXPECT_TRUE(ParseOptions({"-z", "1", "-c", "20"})->blocking);
  EXPECT_TRUE(ParseOptions({"-z", "1", "-c", "20"})->check);
  EXPECT_FALSE(ParseOptions({"--nocheck"})->check);
  EXPECT_TRUE(ParseOptions({"-R", "1"})->registered);
}

TEST(BenchOptionsTest, CountsRanksLikeNcclTests) {
  EXPECT_THAT(ParseOptions({"-g", "8"})->worlds, ElementsAre(8));
  EXPECT_THAT(ParseOptions({"-g", "4", "-t", "2"})->worlds, ElementsAre(8));
  EXPECT_THAT(ParseOptions({"-g1", "-t1"})->worlds, ElementsAre(1));
  EXPECT_THAT(
      ParseOptions({"-t3", "--root=3"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with --np=3")));
}

TEST(BenchOptionsTest, AcceptsOnlyUsualValuesOfNcclFlagsWithoutCounterpart) {
  TESSERA_EXPECT_OK(ParseOptions({"-m", "1", "-G", "0", "-T0", "-p", "0",
                                  "--average=1", "-N", "1", "-C", "0"}));
  EXPECT_THAT(ParseOptions({"-G", "1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("cudagraph=1"), HasSubstr("omit it"))));
  EXPECT_THAT(ParseOptions({"--run_cycles=3"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("its usual value, 1")));
}

TEST(BenchOptionsTest, AllLeavesOutWhatDoesNotExist) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const BenchOptions all,
                               ParseOptions({"-d", "all", "-o", "all"}));
  EXPECT_EQ(all.dtypes.size(), kAllDTypes.size());
  EXPECT_EQ(all.reductions.size(), collectives::kAllReduceOps.size());
  EXPECT_THAT(ParseOptions({"-d", "all"}), IsOk());
  EXPECT_THAT(ParseOptions({"-d", "f32", "-o", "all"}), IsOk());
  EXPECT_THAT(ParseOptions({"-d", "fp8_e4m3", "-o", "all"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--dtype=fp8_e4m3")));
  EXPECT_THAT(
      ParseOptions({"-d", "f32,bf16", "-o", "sum,band"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--dtype=f32")));
}

TEST(BenchOptionsTest, IrreducibleTypesCanBeCopied) {
  EXPECT_THAT(ParseOptions({"--dtype=fp8_e4m3", "--op=all_gather,broadcast"}),
              IsOk());
}

TEST(BenchOptionsTest, TheEngineFollowsTheDevice) {
  EXPECT_THAT(ParseOptions({})->engines, ElementsAre("shared_memory"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const BenchOptions emulated,
                               ParseOptions({"--device=emulated"}));
  EXPECT_THAT(emulated.engines, ElementsAre("emulated"));
  EXPECT_EQ(emulated.device, "emulated");
}

TEST(BenchOptionsTest, DevicesRejectFlagsOfTheHost) {
  EXPECT_THAT(ParseOptions({"--device=gpu"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--device=gpu: expected cpu, emulated or cuda"));
  for (const std::string flag : {"--registered", "--algorithm=ring"}) {
    EXPECT_THAT(ParseOptions({"--device=cuda", flag}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(flag.substr(0, flag.find('=')))));
  }
}

}  // namespace

}  // namespace tessera::tools
