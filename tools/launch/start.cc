#include "tools/launch/start.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/launch/core_binding.h"
#include "tools/launch/environment.h"
#include "tools/launch/program_path.h"
#include "tools/launch/socket_star.h"
#include "tools/launch/spawn.h"
#include "topology/rank.h"

namespace tessera::tools {
namespace {

using topology::Rank;

constexpr int64_t kTorchrunPort = 29500;
constexpr std::string_view kLoopback = "127.0.0.1";

// A port of the loopback interface that nobody has at this moment.
absl::StatusOr<int64_t> FreePort() {
  const UniqueFd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  if (!probe.valid() || bind(probe.get(), generic, length) != 0 ||
      getsockname(probe.get(), generic, &length) != 0) {
    return absl::ErrnoToStatus(
        errno, "cannot find a free port; name one with --master_port");
  }
  return ntohs(address.sin_port);
}

absl::StatusOr<JobVariables> MakeJob(const LaunchPlan& plan) {
  JobVariables job = {.np = plan.np,
                      .nnodes = plan.nnodes,
                      .node_rank = plan.node_rank,
                      .master_addr = plan.master_addr,
                      .master_port = plan.master_port,
                      .secret = ""};
  if (job.master_addr.empty()) job.master_addr = kLoopback;
  if (job.master_port == 0 && plan.nnodes > 1) job.master_port = kTorchrunPort;
  if (job.master_port == 0) {
    TESSERA_ASSIGN_OR_RETURN(job.master_port, FreePort());
  }
  TESSERA_ASSIGN_OR_RETURN(job.secret,
                           MakeSecret(plan.environment, plan.nnodes));
  return job;
}

// The CPUs of each rank; none for a rank that may run anywhere.
absl::StatusOr<std::vector<std::vector<int>>> BindRanks(
    const LaunchPlan& plan) {
  const size_t count = static_cast<size_t>(plan.np);
  if (plan.bind == Bind::kNone) return std::vector<std::vector<int>>(count);
  TESSERA_ASSIGN_OR_RETURN(
      auto cores, CoresForRanks(plan.np),
      absl::IsOutOfRange(_) ? FlagError("bind", "core", _) : _);
  return cores;
}

// The end to write into, and the end to read from without blocking.
struct Pipe {
  UniqueFd writer;
  UniqueFd reader;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  Pipe pipe = {UniqueFd(ends[1]), UniqueFd(ends[0])};
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read a pipe without blocking");
  }
  return pipe;
}

// What a rank writes into.
struct RankOutput {
  UniqueFd out;
  UniqueFd err;  // Not valid: the same as `out`.

  int err_fd() const { return err.valid() ? err.get() : out.get(); }
};

absl::StatusOr<RankOutput> OpenPipes(size_t source, OutputMultiplexer& output) {
  TESSERA_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  TESSERA_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  output.Add(source, Stream::kOut, std::move(out.reader));
  output.Add(source, Stream::kErr, std::move(err.reader));
  return RankOutput{std::move(out.writer), std::move(err.writer)};
}

absl::StatusOr<RankOutput> OpenLog(const LaunchPlan& plan, Rank rank) {
  std::error_code error;
  std::filesystem::create_directories(plan.log_directory, error);
  // Where that failed, so does this, and says why.
  const std::string path =
      absl::StrCat(plan.log_directory, "/rank", rank.value(), ".log");
  UniqueFd file(open(
      path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return RankOutput{std::move(file), UniqueFd()};
}

std::vector<int> Numbers(const std::vector<UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  return numbers;
}

// What all ranks share, and what each is given.
struct Preparation {
  JobVariables job;
  std::string program;
  UniqueFd no_input;
  std::vector<std::vector<UniqueFd>> sockets;
  std::vector<std::vector<int>> cpus;
};

absl::StatusOr<Preparation> Prepare(const LaunchPlan& plan) {
  Preparation made;
  TESSERA_ASSIGN_OR_RETURN(made.job, MakeJob(plan));
  TESSERA_ASSIGN_OR_RETURN(
      made.program,
      FindProgram(plan.command[0],
                  FindVariable(plan.environment, "PATH").value_or("")));
  TESSERA_ASSIGN_OR_RETURN(made.cpus, BindRanks(plan));
  made.no_input.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!made.no_input.valid()) {
    return absl::ErrnoToStatus(errno, "cannot open /dev/null");
  }
  const size_t count = static_cast<size_t>(plan.np);
  made.sockets.resize(count);
  if (plan.nnodes > 1) return made;
  TESSERA_ASSIGN_OR_RETURN(made.sockets, MakeSocketStar(count));
  return made;
}

absl::Status StartRank(const LaunchPlan& plan, const OriginalState& original,
                       const Preparation& made, size_t local,
                       RankProcesses& ranks, OutputMultiplexer& output) {
  const Rank rank(made.job.first_rank() + static_cast<int64_t>(local));
  TESSERA_ASSIGN_OR_RETURN(const RankOutput end,
                           plan.output == OutputMode::kFiles
                               ? OpenLog(plan, rank)
                               : OpenPipes(local, output));
  const std::vector<int> sockets = Numbers(made.sockets[local]);
  return ranks.Start(
      rank,
      {.path = made.program,
       .arguments = plan.command,
       .environment = RankEnvironment(plan.environment, made.job,
                                      static_cast<int64_t>(local), sockets),
       .in = rank == Rank(0) ? STDIN_FILENO : made.no_input.get(),
       .out = end.out.get(),
       .err = end.err_fd(),
       .inherited = sockets,
       .cpus = made.cpus[local],
       .mask = original.mask,
       .own_session = plan.own_sessions,
       .descriptor_limit = original.descriptor_limit});
}

}  // namespace

absl::Status StartRanks(const LaunchPlan& plan, const OriginalState& original,
                        RankProcesses& ranks, OutputMultiplexer& output) {
  TESSERA_ASSIGN_OR_RETURN(const Preparation made, Prepare(plan));
  for (size_t local = 0; local < static_cast<size_t>(plan.np); ++local) {
    TESSERA_RETURN_IF_ERROR(
        StartRank(plan, original, made, local, ranks, output));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
