#include "tools/launch/environment.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

// Expects that each name appears only once.
std::map<std::string, std::string> ToMap(const Strings& environment) {
  std::map<std::string, std::string> variables;
  for (const std::string& variable : environment) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(variable, absl::MaxSplits('=', 1));
    EXPECT_TRUE(variables.insert(parts).second) << variable;
  }
  return variables;
}

JobVariables TwoNodes() {
  return {.np = 4,
          .nnodes = 2,
          .node_rank = 1,
          .master_addr = "10.0.0.7",
          .master_port = 29501,
          .secret = "abcd"};
}

TEST(RankEnvironmentTest, HasTorchrunsVariables) {
  auto variables = ToMap(RankEnvironment({}, TwoNodes(), 2, ""));
  const std::map<std::string, std::string> expected = {
      {"RANK", "6"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "2"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", "6"},
      {"ROLE_WORLD_SIZE", "8"},
      {"MASTER_ADDR", "10.0.0.7"},
      {"MASTER_PORT", "29501"},
      {"OMP_NUM_THREADS", "1"},
      {"TESSERA_JOB_SECRET", "abcd"}};
  EXPECT_EQ(variables, expected);
}

TEST(RankEnvironmentTest, KeepsTheCallersVariablesInOrder) {
  const Strings caller = {"PATH=/bin", "EMPTY=", "ODD=a=b", "HOME=/"};
  const Strings environment = RankEnvironment(caller, TwoNodes(), 0, "");
  ASSERT_GT(environment.size(), caller.size());
  EXPECT_EQ(Strings(environment.begin(), environment.begin() + 4), caller);
}

TEST(RankEnvironmentTest, LeavesOmpNumThreadsAndSecretsAlone) {
  const Strings caller = {"OMP_NUM_THREADS=8", "TESSERA_JOB_SECRET=mine"};
  JobVariables job = TwoNodes();
  job.secret = "";
  auto variables = ToMap(RankEnvironment(caller, job, 0, ""));
  EXPECT_EQ(variables["OMP_NUM_THREADS"], "8");
  EXPECT_EQ(variables["TESSERA_JOB_SECRET"], "mine");
}

TEST(RankEnvironmentTest, NumbersTheInheritedSocketsOfTheRankOnly) {
  const Strings caller = {"TESSERA_INHERITED_SOCKETS=77"};
  EXPECT_EQ(ToMap(RankEnvironment(caller, TwoNodes(), 0,
                                  "5,9,11"))["TESSERA_INHERITED_SOCKETS"],
            "5,9,11");
  EXPECT_EQ(ToMap(RankEnvironment(caller, TwoNodes(), 0, ""))
                .count("TESSERA_INHERITED_SOCKETS"),
            0u);
}

TEST(RankEnvironmentTest, IgnoresVariablesOfOuterLauncher) {
  const Strings caller = {"RANK=31",
                          "WORLD_SIZE=32",
                          "LOCAL_RANK=7",
                          "MASTER_ADDR=elsewhere",
                          "ROLE_RANK=31",
                          "TORCHELASTIC_USE_AGENT_STORE=True",
                          "TORCHELASTIC_RUN_ID=none",
                          "OMPI_COMM_WORLD_RANK=3",
                          "OMPI_COMM_WORLD_SIZE=4",
                          "OMPI_COMM_WORLD_LOCAL_RANK=3",
                          "PMI_RANK=3",
                          "SLURM_PROCID=3",
                          "SLURM_NTASKS=4",
                          "SLURM_LOCALID=3"};
  auto variables = ToMap(RankEnvironment(caller, TwoNodes(), 2, ""));
  EXPECT_EQ(variables.count("TORCHELASTIC_USE_AGENT_STORE"), 0u);
  EXPECT_EQ(variables.count("TORCHELASTIC_RUN_ID"), 0u);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const topology::LauncherEnvironment read,
      topology::ReadLauncherEnvironment(
          [&](std::string_view name) -> std::optional<std::string> {
            const auto found = variables.find(std::string(name));
            if (found == variables.end()) return std::nullopt;
            return found->second;
          }));
  EXPECT_EQ(read.launcher, topology::Launcher::kTorchrun);
  EXPECT_EQ(read.rank, topology::Rank(6));
  EXPECT_EQ(read.world_size, topology::AxisSize(8));
  EXPECT_EQ(read.local_rank, 2);
  EXPECT_EQ(read.local_world_size, 4);
  EXPECT_EQ(read.host_rank, 1);
}

TEST(RankEnvironmentTest, EveryRankOfEveryNodeIsNumberedOnce) {
  for (int64_t np = 1; np <= 5; ++np) {
    for (int64_t nnodes = 1; nnodes <= 4; ++nnodes) {
      std::set<std::string> ranks;
      for (int64_t node = 0; node < nnodes; ++node) {
        for (int64_t local = 0; local < np; ++local) {
          auto variables = ToMap(RankEnvironment(
              {}, {.np = np, .nnodes = nnodes, .node_rank = node}, local, ""));
          ranks.insert(variables["RANK"]);
          EXPECT_EQ(variables["RANK"], std::to_string(node * np + local));
          EXPECT_EQ(variables["WORLD_SIZE"], std::to_string(nnodes * np));
        }
      }
      EXPECT_EQ(ranks.size(), static_cast<size_t>(nnodes * np));
    }
  }
}

TEST(FindVariableTest, FindsFirstExactMatch) {
  const Strings environment = {"PATHS=no", "PATH", "PATH=/bin", "PATH=/late",
                               "X="};
  EXPECT_EQ(FindVariable(environment, "PATH"), "/bin");
  EXPECT_EQ(FindVariable(environment, "X"), "");
  EXPECT_EQ(FindVariable(environment, "PAT"), std::nullopt);
  EXPECT_EQ(FindVariable({}, "PATH"), std::nullopt);
}

TEST(MakeSecretTest, IsNewEachTimeAndThirtyTwoBytes) {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string secret, MakeSecret({}, 1));
    EXPECT_EQ(secret.size(), 64u);
    for (const char digit : secret) EXPECT_TRUE(absl::ascii_isxdigit(digit));
    secrets.insert(secret);
  }
  EXPECT_EQ(secrets.size(), 100u);
}

TEST(MakeSecretTest, KeepsSecretOfCaller) {
  for (const char* variable :
       {"TESSERA_JOB_SECRET=x", "TESSERA_JOB_SECRET_FILE=/run/secret"}) {
    EXPECT_THAT(MakeSecret(Strings{variable}, 1), IsOkAndHolds(""));
    EXPECT_THAT(MakeSecret(Strings{variable}, 2), IsOkAndHolds(""));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string secret,
                               MakeSecret(Strings{"TESSERA_JOB_SECRET="}, 1));
  EXPECT_EQ(secret.size(), 64u);  // Empty means no secret.
}

TEST(MakeSecretTest, RequiresSecretOfCallerForSeveralNodes) {
  EXPECT_THAT(MakeSecret({}, 2), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("set TESSERA_JOB_SECRET")));
}

}  // namespace
}  // namespace tessera::tools
