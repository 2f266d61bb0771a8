#include "tools/comm_bench/bench_options.h"

#include <string>

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
  BenchFlags flags;
  flags.min_bytes = 8;
  flags.max_bytes = 600;
  flags.factor = 4;
  TESSERA_ASSERT_OK_AND_ASSIGN(BenchOptions options, ParseBenchFlags(flags));
  EXPECT_THAT(options.sizes, ElementsAre(8, 32, 128, 512));
  flags.max_bytes = 8;
  TESSERA_ASSERT_OK_AND_ASSIGN(options, ParseBenchFlags(flags));
  EXPECT_THAT(options.sizes, ElementsAre(8));
}

TEST(BenchOptionsTest, ListsAreParsed) {
  BenchFlags flags;
  flags.engine = "shared_memory,mpi";
  flags.np = "2,4,8";
  flags.op = "all_reduce,barrier";
  flags.algorithm = "engine,ring,adaptive";
  flags.dtype = "f32,bf16";
  flags.reduction = "max";
  TESSERA_ASSERT_OK_AND_ASSIGN(const BenchOptions options,
                               ParseBenchFlags(flags));
  EXPECT_THAT(options.engines, ElementsAre("shared_memory", "mpi"));
  EXPECT_THAT(options.worlds, ElementsAre(2, 4, 8));
  EXPECT_THAT(options.ops, ElementsAre(OpKind::kAllReduce, OpKind::kBarrier));
  EXPECT_THAT(options.algorithms, ElementsAre("engine", "ring", "adaptive"));
  EXPECT_THAT(options.dtypes, ElementsAre(DType::kF32, DType::kBF16));
  EXPECT_EQ(options.reduction.op, collectives::ReduceOp::kMax);
}

TEST(BenchOptionsTest, AllMeansEveryCollective) {
  BenchFlags flags;
  flags.op = "all";
  TESSERA_ASSERT_OK_AND_ASSIGN(const BenchOptions options,
                               ParseBenchFlags(flags));
  EXPECT_EQ(options.ops.size(), collectives::kCollectiveKinds.size());
}

struct Bad {
  std::string flag;
  std::string value;
  BenchFlags flags;
};

template <typename T>
Bad With(std::string flag, std::string value, T BenchFlags::*member, T bad) {
  Bad result{std::move(flag), std::move(value), {}};
  result.flags.*member = bad;
  return result;
}

TEST(BenchOptionsTest, BadFlagsAreNamedWithTheirValue) {
  using S = std::string;
  for (const Bad& bad : {
           With("min_bytes", "0", &BenchFlags::min_bytes, int64_t{0}),
           With("min_bytes", "1GiB", &BenchFlags::min_bytes, int64_t{1} << 30),
           With("max_bytes", "-1", &BenchFlags::max_bytes, int64_t{-1}),
           With("factor", "1", &BenchFlags::factor, int64_t{1}),
           With<int64_t>("iterations", "-1", &BenchFlags::iterations,
                         int64_t{-1}),
           With<int64_t>("warmup", "-5", &BenchFlags::warmup, int64_t{-5}),
           With<int64_t>("group_size", "-2", &BenchFlags::group_size,
                         int64_t{-2}),
           With<S>("engine", "mpi,", &BenchFlags::engine, "mpi,"),
           With<S>("engine", "mpi,mpi", &BenchFlags::engine, "mpi,mpi"),
           With<S>("np", "", &BenchFlags::np, ""),
           With<S>("np", "2,x", &BenchFlags::np, "2,x"),
           With<S>("np", "0", &BenchFlags::np, "0"),
           With<S>("np", "100000", &BenchFlags::np, "100000"),
           With<S>("op", "send", &BenchFlags::op, "send"),
           With<S>("op", "sum", &BenchFlags::op, "sum"),
           With<S>("algorithm", "rings", &BenchFlags::algorithm, "rings"),
           With<S>("dtype", "f31", &BenchFlags::dtype, "f31"),
           With<S>("dtype", "fp8_e4m3", &BenchFlags::dtype, "fp8_e4m3"),
           With<S>("reduction", "mean", &BenchFlags::reduction, "mean"),
       }) {
    EXPECT_THAT(ParseBenchFlags(bad.flags),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("--" + bad.flag + "="),
                               HasSubstr(bad.value))));
  }
}

TEST(BenchOptionsTest, TypesThatCannotBeReducedMayMove) {
  BenchFlags flags;
  flags.dtype = "fp8_e4m3";
  flags.op = "all_gather,broadcast";
  EXPECT_THAT(ParseBenchFlags(flags), IsOk());
}

TEST(BenchOptionsTest, RegretIsOverAllAlgorithms) {
  BenchFlags flags;
  flags.regret = true;
  EXPECT_THAT(ParseBenchFlags(flags),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--algorithm=engine")));
  flags.algorithm = "all";
  EXPECT_THAT(ParseBenchFlags(flags), IsOk());
}

TEST(BenchOptionsTest, TheEngineFollowsTheDevice) {
  BenchFlags flags;
  TESSERA_ASSERT_OK_AND_ASSIGN(const BenchOptions host, ParseBenchFlags(flags));
  EXPECT_THAT(host.engines, ElementsAre("shared_memory"));
  EXPECT_TRUE(host.bound);
  flags.device = "emulated";
  TESSERA_ASSERT_OK_AND_ASSIGN(const BenchOptions emulated,
                               ParseBenchFlags(flags));
  EXPECT_THAT(emulated.engines, ElementsAre("cuda"));
  EXPECT_EQ(emulated.device, "emulated");
  EXPECT_FALSE(emulated.bound);
}

TEST(BenchOptionsTest, ADeviceRefusesWhatOnlyTheHostHas) {
  const auto refusal = [](const BenchFlags& flags, const std::string& advice) {
    EXPECT_THAT(
        ParseBenchFlags(flags),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(advice)));
  };
  BenchFlags flags;
  flags.device = "gpu";
  refusal(flags, "--device=gpu: expected cpu, emulated or cuda");
  flags.device = "cuda";
  flags.algorithm = "ring";
  refusal(flags, "leave out --algorithm");
  flags.algorithm = "engine";
  const BenchFlags usual = flags;
  for (const auto& [name, flag] :
       {std::pair("--registered", &BenchSwitches::registered),
        std::pair("--reproducible", &BenchSwitches::reproducible),
        std::pair("--overlap", &BenchSwitches::overlap),
        std::pair("--regret", &BenchSwitches::regret)}) {
    flags = usual;
    flags.*flag = true;
    refusal(flags, name);
  }
  flags = usual;
  flags.group_size = 2;
  refusal(flags, "--group_size");
}

TEST(ArgumentsTest, ShortFlagsBecomeLongOnes) {
  EXPECT_THAT(LongArguments({"-b", "8", "-e", "64M", "-f", "4", "-n", "20",
                             "-w", "5", "-d", "bf16", "-o", "max", "-c", "0"}),
              ElementsAre("--min_bytes=8", "--max_bytes=64M", "--factor=4",
                          "--iterations=20", "--warmup=5", "--dtype=bf16",
                          "--reduction=max", "--check=0"));
}

TEST(ArgumentsTest, TheValueMayBeJoined) {
  EXPECT_THAT(LongArguments({"-b8", "-e=64M"}),
              ElementsAre("--min_bytes=8", "--max_bytes=64M"));
}

TEST(ArgumentsTest, AMissingValueIsLeftToTheParser) {
  EXPECT_THAT(LongArguments({"-b"}), ElementsAre("--min_bytes"));
}

TEST(ArgumentsTest, EverythingElseStays) {
  EXPECT_THAT(
      LongArguments({"--np=4", "--min_bytes", "8", "-x", "-", "", "-h", "b"}),
      ElementsAre("--np=4", "--min_bytes", "8", "-x", "-", "", "-h", "b"));
}

}  // namespace

}  // namespace tessera::tools
