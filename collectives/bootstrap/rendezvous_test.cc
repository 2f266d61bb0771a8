#include "collectives/bootstrap/rendezvous.h"

#include <unistd.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using topology::AxisSize;
using topology::Launcher;
using topology::LauncherEnvironment;
using Kind = Rendezvous::Kind;
using Variables = std::map<std::string, std::string>;

// A plan for rank 1 of 4 on one host.
absl::StatusOr<Rendezvous> Plan(const Variables& variables,
                                Launcher launcher = Launcher::kTorchrun,
                                int64_t world = 4,
                                std::optional<int64_t> local = 4) {
  LauncherEnvironment environment;
  environment.launcher = launcher;
  environment.rank = topology::Rank(1);
  environment.world_size = AxisSize(world);
  environment.local_world_size = local;
  return PlanRendezvous(
      [&](std::string_view name) -> std::optional<std::string> {
        const auto it = variables.find(std::string(name));
        if (it == variables.end()) return std::nullopt;
        return it->second;
      },
      environment);
}

const Variables kTcp = {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(RendezvousTest, WorldOfOneNeedsNoRendezvous) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Rendezvous place,
      Plan({{"MASTER_PORT", "nonsense"}}, Launcher::kTorchrun, 1, 1));
  EXPECT_EQ(place, Rendezvous());
}

TEST(RendezvousTest, InheritedSocketsComeFirst) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Rendezvous place,
      Plan(With(kTcp, {{"TESSERA_INHERITED_SOCKETS", "7"}})));
  EXPECT_EQ(place.kind, Kind::kInheritedSockets);
  EXPECT_EQ(place.inherited, "7");
}

TEST(RendezvousTest, TcpToTheMaster) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Rendezvous place, Plan(kTcp));
  EXPECT_EQ(place.kind, Kind::kTcp);
  EXPECT_EQ(place.host, "10.0.0.1");
  EXPECT_EQ(place.port, 29500);
  EXPECT_EQ(place.port_source, "MASTER_PORT=29500");
  EXPECT_EQ(place.bind_address, "");
  EXPECT_EQ(place.job, "job");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      place, Plan(With(kTcp, {{"TESSERA_MASTER_PORT", "65535"},
                              {"TESSERA_BIND_ADDRESS", "0.0.0.0"},
                              {"TESSERA_JOB_ID", "mine"}})));
  EXPECT_EQ(place.port, 65535);
  EXPECT_EQ(place.port_source, "TESSERA_MASTER_PORT=65535");
  EXPECT_EQ(place.bind_address, "0.0.0.0");
  EXPECT_EQ(place.job, "mine");
}

TEST(RendezvousTest, AvoidsPortOfTorchrunAgent) {
  const Variables agent = With(kTcp, {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                      {"TORCHELASTIC_RUN_ID", "a"},
                                      {"TORCHELASTIC_RESTART_COUNT", "0"}});
  TESSERA_ASSERT_OK_AND_ASSIGN(Rendezvous place, Plan(agent));
  EXPECT_EQ(place.port, AgentStorePort(29500, "a", "0"));
  EXPECT_EQ(place.job, "a/0");
  EXPECT_THAT(place.port_source,
              AllOf(HasSubstr("MASTER_PORT=29500"), HasSubstr("agent"),
                    HasSubstr(absl::StrCat(place.port))));
  // Only if requested, and only under torchrun.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      place, Plan(With(agent, {{"TESSERA_MASTER_PORT", "123"}})));
  EXPECT_EQ(place.port, 123);
  TESSERA_ASSERT_OK_AND_ASSIGN(place, Plan(agent, Launcher::kSlurm));
  EXPECT_EQ(place.port, 29500);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      place, Plan(With(agent, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})));
  EXPECT_EQ(place.port, 29500);
}

TEST(AgentStorePortTest, IsSpreadAndDiffersFromAgentPort) {
  std::set<int> ports;
  for (int port = 1; port <= 65535; ++port) {
    const int other = AgentStorePort(port, "none", "0");
    ASSERT_GE(other, 20000);
    ASSERT_LE(other, 32767);
    ASSERT_NE(other, port);
    ports.insert(other);
  }
  EXPECT_GT(ports.size(), 12'000u);
  EXPECT_NE(AgentStorePort(29500, "a", "0"), AgentStorePort(29500, "a", "1"));
  EXPECT_NE(AgentStorePort(29500, "a", "0"), AgentStorePort(29500, "b", "0"));
  // All versions of the library must use the same port.
  EXPECT_EQ(AgentStorePort(29500, "none", "0"), 30889);
}

TEST(RendezvousTest, RejectsInvalidPorts) {
  for (const char* port : {"", "0", "65536", "-1", "+80", " 80", "80 ", "0x50",
                           "1e3", "99999999999999999999", "port"}) {
    EXPECT_THAT(
        Plan(With(kTcp, {{"MASTER_PORT", port}})),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("MASTER_PORT=\"", port,
                                        "\" is not a port; use 1 to"))));
    EXPECT_THAT(Plan(With(kTcp, {{"TESSERA_MASTER_PORT", port}})),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("TESSERA_MASTER_PORT=")));
  }
}

TEST(RendezvousTest, NamesMissingVariable) {
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(Plan({{"MASTER_ADDR", "a"}}),
              invalid("neither MASTER_PORT nor TESSERA_MASTER_PORT"));
  EXPECT_THAT(Plan({{"MASTER_PORT", "80"}}), invalid("but not MASTER_ADDR"));
  EXPECT_THAT(Plan({{"MASTER_ADDR", ""}, {"MASTER_PORT", "80"}}),
              invalid("MASTER_ADDR is empty"));
  for (const std::string& name : {std::string(), std::string("a b"),
                                  std::string(81, 'n'), std::string("\n")}) {
    EXPECT_THAT(Plan(With(kTcp, {{"TESSERA_JOB_ID", name}})),
                invalid("is not a valid name; use 1 to 80 visible characters"));
  }
}

TEST(RendezvousTest, OneHostUsesSocketNamedAfterJob) {
  const std::string prefix = absl::StrCat("tessera/", geteuid(), "/");
  const auto name_of = [](const Variables& variables, Launcher launcher) {
    const auto place = Plan(variables, launcher);
    EXPECT_THAT(place, IsOk());
    EXPECT_EQ(place->kind, Kind::kAbstractSocket);
    return place->abstract_name;
  };
  EXPECT_EQ(name_of({{"PMIX_NAMESPACE", "12"}}, Launcher::kOpenMpi),
            prefix + "12");
  EXPECT_EQ(name_of({{"OMPI_MCA_ess_base_jobid", "34"}}, Launcher::kOpenMpi),
            prefix + "34");
  EXPECT_EQ(name_of({{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "1"}},
                    Launcher::kSlurm),
            prefix + "7.1");
  EXPECT_EQ(name_of({{"TORCHELASTIC_RUN_ID", "r"}}, Launcher::kTorchrun),
            prefix + "r/");
  EXPECT_EQ(name_of({{"TESSERA_JOB_ID", "own"}}, Launcher::kMpich),
            prefix + "own");
  EXPECT_LE(
      name_of({{"PMIX_NAMESPACE", std::string(500, 'n')}}, Launcher::kOpenMpi)
          .size(),
      100u);
}

TEST(RendezvousTest, NamesVariablesToSet) {
  const auto nowhere = [](const char* text) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr("rank 1 of 4"), HasSubstr("MASTER_ADDR"),
                          HasSubstr("MASTER_PORT"), HasSubstr(text)));
  };
  EXPECT_THAT(Plan({}, Launcher::kMpich), nowhere("TESSERA_JOB_ID"));
  EXPECT_THAT(Plan({{"TORCHELASTIC_RUN_ID", "none"}}),
              nowhere("TESSERA_JOB_ID"));
  const Variables slurm = {{"SLURM_JOB_ID", "7"}};
  EXPECT_THAT(Plan(slurm, Launcher::kSlurm, 4, 2),
              nowhere("TESSERA_JOB_SECRET"));
  EXPECT_THAT(Plan(slurm, Launcher::kSlurm, 4, std::nullopt), nowhere("Slurm"));
}

}  // namespace
}  // namespace tessera::collectives
