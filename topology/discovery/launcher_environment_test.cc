#include "topology/discovery/launcher_environment.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SlurmTasksTest, ReadsTheFormsOfTheManual) {
  EXPECT_THAT(ParseSlurmTasksPerNode("8"),
              IsOkAndHolds(ElementsAre(SlurmTaskRun{8, 1})));
  EXPECT_THAT(
      ParseSlurmTasksPerNode("2(x3),1"),
      IsOkAndHolds(ElementsAre(SlurmTaskRun{2, 3}, SlurmTaskRun{1, 1})));
  EXPECT_THAT(ParseSlurmTasksPerNode("1,2,1(x2)"),
              IsOkAndHolds(ElementsAre(SlurmTaskRun{1, 1}, SlurmTaskRun{2, 1},
                                       SlurmTaskRun{1, 2})));
}

TEST(SlurmTasksTest, MatchesExpandedList) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SlurmTaskRun> runs(1 + random() % 5);
    std::vector<int64_t> nodes;
    std::string text;
    int64_t tasks = 0;
    for (SlurmTaskRun& run : runs) {
      run.tasks = 1 + static_cast<int64_t>(random() % 9);
      run.nodes = 1 + static_cast<int64_t>(random() % 4);
      nodes.insert(nodes.end(), static_cast<size_t>(run.nodes), run.tasks);
      tasks += run.tasks * run.nodes;
      absl::StrAppend(&text, text.empty() ? "" : ",", run.tasks);
      if (run.nodes > 1) absl::StrAppend(&text, "(x", run.nodes, ")");
    }
    EXPECT_THAT(ParseSlurmTasksPerNode(text), IsOkAndHolds(runs));
    EXPECT_EQ(SlurmNodeCount(runs), static_cast<int64_t>(nodes.size()));
    EXPECT_EQ(SlurmTaskCount(runs), tasks);
    for (size_t node = 0; node < nodes.size(); ++node) {
      EXPECT_EQ(SlurmTasksOfNode(runs, static_cast<int64_t>(node)),
                nodes[node]);
    }
    EXPECT_EQ(SlurmTasksOfNode(runs, static_cast<int64_t>(nodes.size())),
              std::nullopt);
    EXPECT_EQ(SlurmTasksOfNode(runs, -1), std::nullopt);
  }
}

TEST(SlurmTasksTest, RejectsInvalidLists) {
  for (const std::string text : {"",
                                 ",",
                                 "2,",
                                 ",2",
                                 "0",
                                 "-1",
                                 "+1",
                                 " 1",
                                 "1 ",
                                 "2(x0)",
                                 "2(x-1)",
                                 "2(3)",
                                 "2(x3",
                                 "2x3)",
                                 "(x3)",
                                 "2(x3)4",
                                 "2()",
                                 "2(x)",
                                 "1.5",
                                 "a",
                                 "2((x3))",
                                 "99999999999999999999",
                                 "2(x99999999999999999999)"}) {
    EXPECT_THAT(
        ParseSlurmTasksPerNode(text),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"" + text + "\""), HasSubstr("2(x3),1"))))
        << text;
  }
}

TEST(SlurmTasksTest, BoundsNodesTasksAndLength) {
  EXPECT_THAT(ParseSlurmTasksPerNode("1(x1048576)"), IsOk());
  EXPECT_THAT(ParseSlurmTasksPerNode("1(x1048576),1"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("more than 2^20 nodes")));
  EXPECT_THAT(ParseSlurmTasksPerNode("1048576(x1048576)"), IsOk());
  EXPECT_THAT(ParseSlurmTasksPerNode("1099511627776(x1048576)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("more than 2^40 tasks")));
  EXPECT_THAT(ParseSlurmTasksPerNode(std::string(2 << 20, '1')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("longer than 1 MiB")));
}

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LauncherEnvironment> Read(const Variables& variables) {
  return ReadLauncherEnvironment(
      [&](std::string_view name) -> std::optional<std::string> {
        const auto found = variables.find(std::string(name));
        if (found == variables.end()) return std::nullopt;
        return found->second;
      });
}

Variables Torchrun() {
  return Variables{{"RANK", "5"},
                   {"WORLD_SIZE", "8"},
                   {"LOCAL_RANK", "1"},
                   {"LOCAL_WORLD_SIZE", "4"},
                   {"GROUP_RANK", "1"}};
}

Variables OpenMpi() {
  return Variables{{"OMPI_COMM_WORLD_RANK", "5"},
                   {"OMPI_COMM_WORLD_SIZE", "8"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
}

Variables Mpich() {
  return Variables{{"PMI_RANK", "5"},
                   {"PMI_SIZE", "8"},
                   {"MPI_LOCALRANKID", "1"},
                   {"MPI_LOCALNRANKS", "4"}};
}

Variables Slurm() {
  return Variables{{"SLURM_PROCID", "6"},
                   {"SLURM_NTASKS", "7"},
                   {"SLURM_LOCALID", "0"},
                   {"SLURM_NODEID", "3"},
                   {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                   {"SLURMD_NODENAME", "node3"}};
}

TEST(LauncherEnvironmentTest, ReadsEveryLauncher) {
  LauncherEnvironment expected;
  expected.rank = Rank(5);
  expected.world_size = AxisSize(8);
  expected.local_rank = 1;
  expected.local_world_size = 4;
  expected.launcher = Launcher::kOpenMpi;
  EXPECT_THAT(Read(OpenMpi()), IsOkAndHolds(expected));
  expected.launcher = Launcher::kMpich;
  EXPECT_THAT(Read(Mpich()), IsOkAndHolds(expected));
  expected.launcher = Launcher::kTorchrun;
  expected.host_rank = 1;
  EXPECT_THAT(Read(Torchrun()), IsOkAndHolds(expected));

  TESSERA_ASSERT_OK_AND_ASSIGN(const LauncherEnvironment slurm, Read(Slurm()));
  EXPECT_EQ(slurm.launcher, Launcher::kSlurm);
  EXPECT_EQ(slurm.rank, Rank(6));
  EXPECT_EQ(slurm.world_size, AxisSize(7));
  EXPECT_EQ(slurm.local_rank, 0);
  EXPECT_EQ(slurm.local_world_size, 1);
  EXPECT_EQ(slurm.host_rank, 3);
  EXPECT_EQ(slurm.host_name, "node3");
}

TEST(LauncherEnvironmentTest, OptionalVariablesMayBeMissing) {
  for (auto [variables, optional] :
       std::vector<std::pair<Variables, std::vector<std::string>>>{
           {Torchrun(), {"LOCAL_WORLD_SIZE", "GROUP_RANK"}},
           {OpenMpi(), {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
           {Mpich(), {"MPI_LOCALNRANKS"}},
           {Slurm(),
            {"SLURM_TASKS_PER_NODE", "SLURM_NODEID", "SLURMD_NODENAME"}}}) {
    for (const std::string& name : optional) {
      variables.erase(name);
      EXPECT_THAT(Read(variables), IsOk()) << name;
    }
    EXPECT_EQ(Read(variables)->local_world_size, std::nullopt);
  }
}

TEST(LauncherEnvironmentTest, RequiredVariablesAreNamedWhenMissing) {
  for (const auto& [all, names] :
       std::vector<std::pair<Variables, std::vector<std::string>>>{
           {Torchrun(), {"RANK", "WORLD_SIZE", "LOCAL_RANK"}},
           {OpenMpi(), {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}},
           {Mpich(), {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}},
           {Slurm(), {"SLURM_NTASKS", "SLURM_LOCALID"}}}) {
    for (const std::string& name : names) {
      Variables variables = all;
      variables.erase(name);
      EXPECT_THAT(Read(variables), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr(name + " is not set")))
          << name;
    }
  }
}

TEST(LauncherEnvironmentTest, MalformedNumbersAreNamedWithTheirValue) {
  for (const Variables& all : {Torchrun(), OpenMpi(), Mpich(), Slurm()}) {
    for (const auto& [name, good] : all) {
      if (name == "SLURM_TASKS_PER_NODE" || name == "SLURMD_NODENAME") continue;
      for (const char* bad : {"", "-1", "+1", " 1", "one", "1.5",
                              "99999999999999999999", "0x1"}) {
        Variables variables = all;
        variables[name] = bad;
        EXPECT_THAT(
            Read(variables),
            StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr(absl::StrCat(name, "=\"", bad, "\" is not"))))
            << name << '=' << bad << " instead of " << good;
      }
    }
  }
}

TEST(LauncherEnvironmentTest, ContradictionsNameBothVariablesAndValues) {
  const auto with = [](Variables variables, const Variables& changes) {
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
  };
  const std::vector<std::pair<Variables, std::string>> cases = {
      {with(Torchrun(), {{"RANK", "8"}}), "RANK=8 is not below WORLD_SIZE=8"},
      {with(Torchrun(), {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=\"0\" is not"},
      {with(Torchrun(), {{"LOCAL_RANK", "4"}}),
       "LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4"},
      {with(Torchrun(), {{"LOCAL_WORLD_SIZE", "9"}}),
       "LOCAL_WORLD_SIZE=9 exceeds WORLD_SIZE=8"},
      {with(Torchrun(), {{"RANK", "1"}, {"LOCAL_RANK", "3"}}),
       "LOCAL_RANK=3 exceeds RANK=1"},
      {with(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_RANK", "8"}}),
       "OMPI_COMM_WORLD_LOCAL_RANK=8 is not below OMPI_COMM_WORLD_SIZE=8"},
      {with(Slurm(), {{"SLURM_NTASKS", "8"}}),
       "SLURM_TASKS_PER_NODE=2(x3),1 has 7 tasks, but SLURM_NTASKS=8"},
      {with(Slurm(), {{"SLURM_NODEID", "4"}}),
       "SLURM_NODEID=4 is not below the 4 nodes of SLURM_TASKS_PER_NODE"},
      {with(Slurm(), {{"SLURM_LOCALID", "1"}}),
       "SLURM_LOCALID=1 is not below the 1 tasks of node 3"},
      {with(Slurm(), {{"SLURM_TASKS_PER_NODE", "2(x"}}),
       "SLURM_TASKS_PER_NODE: task list \"2(x\""},
      {with(Slurm(), {{"SLURM_STEP_TASKS_PER_NODE", "9"}}),
       "SLURM_STEP_TASKS_PER_NODE=9 has 9 tasks"},
  };
  for (const auto& [variables, reason] : cases) {
    EXPECT_THAT(Read(variables), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr(reason)));
  }
}

TEST(LauncherEnvironmentTest, PrefersInnermostLauncher) {
  Variables variables = Slurm();
  EXPECT_EQ(Read(variables)->launcher, Launcher::kSlurm);
  // srun with PMI: Slurm's own variables give more detail.
  variables["PMI_RANK"] = "6";
  variables["PMI_SIZE"] = "7";
  EXPECT_EQ(Read(variables)->launcher, Launcher::kSlurm);
  variables.merge(Mpich());
  EXPECT_EQ(Read(variables)->launcher, Launcher::kMpich);
  variables.merge(OpenMpi());
  EXPECT_EQ(Read(variables)->launcher, Launcher::kOpenMpi);
  variables.merge(Torchrun());
  EXPECT_EQ(Read(variables)->launcher, Launcher::kTorchrun);
}

TEST(LauncherEnvironmentTest, ReturnsNotFoundWithoutLauncher) {
  for (const Variables& variables :
       {Variables{}, Variables{{"WORLD_SIZE", "8"}, {"SLURM_NTASKS", "8"}}}) {
    EXPECT_THAT(Read(variables),
                StatusIs(absl::StatusCode::kNotFound,
                         AllOf(HasSubstr("torchrun"), HasSubstr("Slurm"))));
  }
}

TEST(LauncherEnvironmentTest, BatchScriptIsNotARank) {
  const Variables script = {
      {"SLURM_JOB_ID", "7"},        {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "4"},        {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "0"},        {"SLURM_NNODES", "1"},
      {"SLURM_TASKS_PER_NODE", "4"}};
  EXPECT_THAT(Read(script), StatusIs(absl::StatusCode::kNotFound,
                                     HasSubstr("batch job's script")));
  Variables task = script;
  task["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(Read(task)->world_size, AxisSize(4));
  Variables several = script;
  several["SLURM_NNODES"] = "2";
  EXPECT_THAT(Read(several),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("SLURM_NNODES=2"), HasSubstr("srun"),
                             HasSubstr("TESSERA_LAUNCHER=none"))));
  several["TESSERA_LAUNCHER"] = "none";
  EXPECT_THAT(Read(several), StatusIs(absl::StatusCode::kNotFound));
}

TEST(LauncherEnvironmentTest, StepMayHaveFewerTasksThanItsJob) {
  // salloc, or srun --pty -n1 in an allocation.
  Variables shell = {{"SLURM_PROCID", "0"},         {"SLURM_NTASKS", "4"},
                     {"SLURM_LOCALID", "0"},        {"SLURM_NODEID", "0"},
                     {"SLURM_TASKS_PER_NODE", "4"}, {"SLURM_STEP_ID", "1"},
                     {"SLURM_STEP_NUM_TASKS", "1"}};
  EXPECT_EQ(Read(shell)->world_size, AxisSize(1));
  shell["SLURM_STEP_TASKS_PER_NODE"] = "1";
  EXPECT_EQ(Read(shell)->local_world_size, 1);
  shell["SLURM_STEP_TASKS_PER_NODE"] = "2";
  EXPECT_THAT(Read(shell), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("SLURM_STEP_NUM_TASKS=1")));
}

TEST(LauncherEnvironmentTest, PyTorchJobHasOneRankOnEachHost) {
  Variables pod = {{"RANK", "2"},          {"WORLD_SIZE", "3"},
                   {"MASTER_ADDR", "job"}, {"MASTER_PORT", "23456"},
                   {"PET_NNODES", "3"},    {"PET_NPROC_PER_NODE", "1"},
                   {"PET_NODE_RANK", "2"}};
  LauncherEnvironment expected;
  expected.rank = Rank(2);
  expected.world_size = AxisSize(3);
  expected.local_world_size = 1;
  expected.host_rank = 2;
  EXPECT_THAT(Read(pod), IsOkAndHolds(expected));
  pod["PET_NPROC_PER_NODE"] = "4";
  EXPECT_THAT(Read(pod), StatusIs(absl::StatusCode::kInvalidArgument,
                                  AllOf(HasSubstr("PET_NPROC_PER_NODE=4"),
                                        HasSubstr("//tools/launch"))));
  // torchrun in the pod.
  pod.merge(Variables{{"LOCAL_RANK", "1"}});
  EXPECT_EQ(Read(pod)->local_rank, 1);
}

TEST(LauncherEnvironmentTest, VariableSelectsTheLauncher) {
  Variables all = Torchrun();
  all.merge(OpenMpi());
  all.merge(Mpich());
  all.merge(Slurm());
  const auto read = [&](const std::string& choice) {
    Variables variables = all;
    variables["TESSERA_LAUNCHER"] = choice;
    return Read(variables);
  };
  EXPECT_EQ(read("")->launcher, Launcher::kTorchrun);
  EXPECT_EQ(read("auto")->launcher, Launcher::kTorchrun);
  EXPECT_EQ(read("torchrun")->launcher, Launcher::kTorchrun);
  EXPECT_EQ(read("openmpi")->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(read("mpich")->launcher, Launcher::kMpich);
  EXPECT_EQ(read("slurm")->launcher, Launcher::kSlurm);
  EXPECT_THAT(read("none"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(read("pbs"), StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("TESSERA_LAUNCHER=\"pbs\""),
                                          HasSubstr("auto, none, torchrun"))));
  EXPECT_THAT(Read({{"TESSERA_LAUNCHER", "mpich"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("PMI_RANK is not set")));
}

TEST(LauncherEnvironmentTest, LaunchersHaveNames) {
  EXPECT_EQ(LauncherName(Launcher::kTorchrun), "torchrun");
  EXPECT_EQ(LauncherName(Launcher::kOpenMpi), "Open MPI");
  EXPECT_EQ(LauncherName(Launcher::kMpich), "MPICH");
  EXPECT_EQ(LauncherName(Launcher::kSlurm), "Slurm");
}

}  // namespace

}  // namespace tessera::topology
