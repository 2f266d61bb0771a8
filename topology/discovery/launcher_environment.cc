#include "topology/discovery/launcher_environment.h"

#include <array>
#include <limits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera::topology {

namespace {

constexpr size_t kMaxText = 1 << 20;
constexpr int64_t kMaxNodes = int64_t{1} << 20;
constexpr int64_t kMaxTasks = int64_t{1} << 40;

absl::Status Invalid(std::string_view text, std::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(
      "task list \"", text.substr(0, 60), text.size() > 60 ? "..." : "", "\" ",
      reason, "; expected counts such as 2(x3),1"));
}

// Accepts digits only; SimpleAtoi would also accept a sign and blanks.
bool ParseCount(std::string_view text, int64_t high, int64_t* count) {
  if (text.empty() || !absl::ascii_isdigit(text.front())) return false;
  if (!absl::ascii_isdigit(text.back())) return false;
  return absl::SimpleAtoi(text, count) && *count >= 1 && *count <= high;
}

bool ParseRun(std::string_view item, SlurmTaskRun* run) {
  const size_t bracket = item.find('(');
  if (bracket == std::string_view::npos) {
    return ParseCount(item, kMaxTasks, &run->tasks);
  }
  std::string_view repeat = item.substr(bracket);
  return absl::ConsumePrefix(&repeat, "(x") &&
         absl::ConsumeSuffix(&repeat, ")") &&
         ParseCount(item.substr(0, bracket), kMaxTasks, &run->tasks) &&
         ParseCount(repeat, kMaxNodes, &run->nodes);
}

}  // namespace

absl::StatusOr<std::vector<SlurmTaskRun>> ParseSlurmTasksPerNode(
    std::string_view text) {
  if (text.empty()) return Invalid(text, "is empty");
  if (text.size() > kMaxText) return Invalid(text, "is longer than 1 MiB");
  std::vector<SlurmTaskRun> runs;
  int64_t nodes = 0;
  int64_t tasks = 0;
  for (std::string_view item : absl::StrSplit(text, ',')) {
    SlurmTaskRun run;
    if (!ParseRun(item, &run)) {
      return Invalid(text, absl::StrCat("has the item \"", item.substr(0, 40),
                                        "\", which is not a count"));
    }
    nodes += run.nodes;
    if (nodes > kMaxNodes) return Invalid(text, "has more than 2^20 nodes");
    // Each term is at most 2^40 * 2^20, so nothing overflows.
    tasks += run.tasks * run.nodes;
    if (tasks > kMaxTasks) return Invalid(text, "has more than 2^40 tasks");
    runs.push_back(run);
  }
  return runs;
}

int64_t SlurmNodeCount(const std::vector<SlurmTaskRun>& runs) {
  int64_t nodes = 0;
  for (const SlurmTaskRun& run : runs) nodes += run.nodes;
  return nodes;
}

int64_t SlurmTaskCount(const std::vector<SlurmTaskRun>& runs) {
  int64_t tasks = 0;
  for (const SlurmTaskRun& run : runs) tasks += run.tasks * run.nodes;
  return tasks;
}

std::optional<int64_t> SlurmTasksOfNode(const std::vector<SlurmTaskRun>& runs,
                                        int64_t node) {
  if (node < 0) return std::nullopt;
  for (const SlurmTaskRun& run : runs) {
    if (node < run.nodes) return run.tasks;
    node -= run.nodes;
  }
  return std::nullopt;
}

namespace {

constexpr int64_t kMaxNumber = std::numeric_limits<int64_t>::max();

// The variables of one launcher; an empty name if it has none.
struct Variables {
  Launcher launcher;
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_rank;
  std::string_view local_world_size;
  std::string_view host_rank;
};

constexpr Variables kTorchrun = {Launcher::kTorchrun, "RANK",
                                 "WORLD_SIZE",        "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",  "GROUP_RANK"};
constexpr Variables kOpenMpi = {
    Launcher::kOpenMpi,           "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",       "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", ""};
constexpr Variables kMpich = {Launcher::kMpich,  "PMI_RANK",        "PMI_SIZE",
                              "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""};
constexpr Variables kSlurm = {
    Launcher::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "",
    "SLURM_NODEID"};

// Reads variables through a lookup function.
class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> Text(std::string_view name) const {
    return name.empty() ? std::nullopt : lookup_(name);
  }
  bool Has(std::string_view name) const { return Text(name).has_value(); }

  // A whole number of at least `low`, or nullopt if it is not set.
  absl::StatusOr<std::optional<int64_t>> Optional(std::string_view name,
                                                  int64_t low) const {
    const std::optional<std::string> text = Text(name);
    if (!text) return std::nullopt;
    int64_t number = 0;
    const bool plain = !text->empty() && absl::ascii_isdigit(text->front());
    if (plain && absl::SimpleAtoi(*text, &number) && number >= low) {
      return number;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        name, "=\"", text->substr(0, 60), "\" is not a whole number from ", low,
        " to ", kMaxNumber));
  }

  absl::StatusOr<int64_t> Required(Launcher launcher, std::string_view name,
                                   int64_t low) const {
    TESSERA_ASSIGN_OR_RETURN(const auto number, Optional(name, low));
    if (number) return *number;
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is not set, though other variables of ", LauncherName(launcher),
        " are; start the program with its launcher, or unset "
        "those"));
  }

 private:
  const EnvironmentLookup& lookup_;
};

// Checks that a value is below its bound. Both are named by their variables.
absl::Status CheckBelow(std::string_view name, int64_t value,
                        std::string_view bound_name, int64_t bound) {
  if (value < bound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", value, " is not below ", bound_name, "=", bound));
}

absl::StatusOr<LauncherEnvironment> ReadVariables(const Reader& reader,
                                                  const Variables& names) {
  LauncherEnvironment result;
  result.launcher = names.launcher;
  TESSERA_ASSIGN_OR_RETURN(const int64_t rank,
                           reader.Required(names.launcher, names.rank, 0));
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t world,
      reader.Required(names.launcher, names.world_size, 1));
  TESSERA_ASSIGN_OR_RETURN(
      result.local_rank, reader.Required(names.launcher, names.local_rank, 0));
  TESSERA_ASSIGN_OR_RETURN(result.local_world_size,
                           reader.Optional(names.local_world_size, 1));
  TESSERA_ASSIGN_OR_RETURN(result.host_rank,
                           reader.Optional(names.host_rank, 0));
  result.rank = Rank(rank);
  result.world_size = AxisSize(world);
  TESSERA_RETURN_IF_ERROR(
      CheckBelow(names.rank, rank, names.world_size, world));
  TESSERA_RETURN_IF_ERROR(
      CheckBelow(names.local_rank, result.local_rank, names.world_size, world));
  // Open MPI can be configured to number a host's ranks in another order.
  if (names.launcher != Launcher::kOpenMpi && result.local_rank > rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        names.local_rank, "=", result.local_rank, " exceeds ", names.rank, "=",
        rank, "; a host's ranks ascend with the local rank"));
  }
  if (result.local_world_size) {
    TESSERA_RETURN_IF_ERROR(CheckBelow(names.local_rank, result.local_rank,
                                       names.local_world_size,
                                       *result.local_world_size));
    if (*result.local_world_size > world) {
      return absl::InvalidArgumentError(
          absl::StrCat(names.local_world_size, "=", *result.local_world_size,
                       " exceeds ", names.world_size, "=", world));
    }
  }
  return result;
}

// Reads the task list of the step if there is one, otherwise that of the batch
// job.
absl::Status ReadSlurmTasks(const Reader& reader, LauncherEnvironment& result) {
  std::string_view name = "SLURM_STEP_TASKS_PER_NODE";
  const bool is_step = reader.Has("SLURM_STEP_NUM_TASKS");
  if (!reader.Has(name) && !is_step) name = "SLURM_TASKS_PER_NODE";
  const std::optional<std::string> text = reader.Text(name);
  if (!text) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SlurmTaskRun> runs,
                           ParseSlurmTasksPerNode(*text), Annotate(_, name));
  const std::string shown = absl::StrCat(name, "=", text->substr(0, 60));
  const int64_t tasks = SlurmTaskCount(runs);
  if (tasks != result.world_size.value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " has ", tasks, " tasks, but ",
                     is_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "=",
                     result.world_size.value()));
  }
  if (!result.host_rank) return absl::OkStatus();
  result.local_world_size = SlurmTasksOfNode(runs, *result.host_rank);
  if (!result.local_world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("SLURM_NODEID=", *result.host_rank, " is not below the ",
                     SlurmNodeCount(runs), " nodes of ", shown));
  }
  if (result.local_rank < *result.local_world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("SLURM_LOCALID=", result.local_rank, " is not below the ",
                   *result.local_world_size, " tasks of node ",
                   *result.host_rank, " in ", shown));
}

// A process of a step, and not the script of a batch job, which has number 0.
bool IsSlurmTask(const Reader& reader) {
  return reader.Has("SLURM_STEP_NUM_TASKS") || reader.Has("SLURM_STEP_ID") ||
         reader.Has("SLURM_STEPID") ||
         reader.Has("SLURM_STEP_TASKS_PER_NODE") ||
         reader.Text("SLURM_PROCID") != "0" ||
         reader.Text("SLURM_NTASKS").value_or("1") == "1";
}

// The script of a batch job starts ranks itself, on its own host.
absl::Status ReadBatchScript(const Reader& reader) {
  for (const std::string_view name : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    const std::string nodes = reader.Text(name).value_or("1");
    if (nodes == "1") continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "SLURM_PROCID=0 without SLURM_STEP_ID is the script of a batch job, "
        "and "
        "it has ",
        name, "=", nodes.substr(0, 60), " hosts; start the ranks with srun"));
  }
  return absl::NotFoundError(
      "SLURM_PROCID is that of a batch job's script, not of a task of srun");
}

absl::StatusOr<LauncherEnvironment> ReadSlurm(const Reader& reader) {
  if (!IsSlurmTask(reader)) return ReadBatchScript(reader);
  Variables names = kSlurm;
  // The tasks of a step may be fewer than those of its job.
  if (reader.Has("SLURM_STEP_NUM_TASKS")) {
    names.world_size = "SLURM_STEP_NUM_TASKS";
  }
  TESSERA_ASSIGN_OR_RETURN(LauncherEnvironment result,
                           ReadVariables(reader, names));
  TESSERA_RETURN_IF_ERROR(ReadSlurmTasks(reader, result));
  result.host_name = reader.Text("SLURMD_NODENAME");
  return result;
}

}  // namespace

std::string_view LauncherName(Launcher launcher) {
  constexpr std::array<std::string_view, 4> kNames = {"torchrun", "Open MPI",
                                                      "MPICH", "Slurm"};
  return kNames[static_cast<size_t>(launcher)];
}

namespace {

// Kubeflow's PyTorchJob gives torchrun's variables to the one process of each
// host, without those of the host.
absl::StatusOr<LauncherEnvironment> ReadTorchrun(
    const EnvironmentLookup& lookup) {
  const Reader reader(lookup);
  const bool is_pod = reader.Has("PET_NNODES") && !reader.Has("LOCAL_RANK");
  if (!is_pod) return ReadVariables(reader, kTorchrun);
  constexpr std::string_view kRanks = "PET_NPROC_PER_NODE";
  const std::string ranks = reader.Text(kRanks).value_or("1");
  if (ranks != "1" && ranks != "auto" && !ranks.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kRanks, "=", ranks.substr(0, 60),
        " and no LOCAL_RANK: this host has several ranks; start them with "
        "//tools/launch or torchrun, which read the PET_ variables"));
  }
  const EnvironmentLookup with_host =
      [&](std::string_view name) -> std::optional<std::string> {
    if (name == "LOCAL_RANK") return "0";
    if (name == "LOCAL_WORLD_SIZE") return "1";
    return lookup(name == "GROUP_RANK" ? "RANK" : name);
  };
  return ReadVariables(Reader(with_host), kTorchrun);
}

absl::StatusOr<LauncherEnvironment> ReadChosen(const EnvironmentLookup& lookup,
                                               std::string_view choice) {
  const Reader reader(lookup);
  if (choice == "torchrun") return ReadTorchrun(lookup);
  if (choice == "openmpi") return ReadVariables(reader, kOpenMpi);
  if (choice == "mpich") return ReadVariables(reader, kMpich);
  if (choice == "slurm") return ReadSlurm(reader);
  if (reader.Has("RANK") || reader.Has("LOCAL_RANK")) {
    return ReadTorchrun(lookup);
  }
  if (reader.Has("OMPI_COMM_WORLD_RANK")) {
    return ReadVariables(reader, kOpenMpi);
  }
  const bool slurm = reader.Has("SLURM_PROCID");
  if (reader.Has("MPI_LOCALRANKID") || (reader.Has("PMI_RANK") && !slurm)) {
    return ReadVariables(reader, kMpich);
  }
  if (slurm) return ReadSlurm(reader);
  return absl::NotFoundError(
      "no launcher's variables are set: neither RANK and LOCAL_RANK "
      "(torchrun), OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH) nor "
      "SLURM_PROCID (Slurm); start the program with one of these");
}

}  // namespace

absl::StatusOr<LauncherEnvironment> ReadLauncherEnvironment(
    const EnvironmentLookup& lookup) {
  std::string choice = lookup(kLauncherVariable).value_or("");
  if (choice.empty()) choice = "auto";
  if (choice == "none") {
    return absl::NotFoundError(
        absl::StrCat(kLauncherVariable, "=none: there is no launcher"));
  }
  if (!absl::c_linear_search(kLauncherChoices, choice)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kLauncherVariable, "=\"", choice.substr(0, 60),
                     "\" is none of ", absl::StrJoin(kLauncherChoices, ", ")));
  }
  absl::StatusOr<LauncherEnvironment> result = ReadChosen(lookup, choice);
  if (!absl::IsInvalidArgument(result.status())) return result;
  return absl::InvalidArgumentError(
      absl::StrCat(result.status().message(), "; ", kLauncherVariable,
                   "=none ignores the variables of launchers"));
}

}  // namespace tessera::topology
