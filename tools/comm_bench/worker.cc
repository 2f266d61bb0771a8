#include "tools/comm_bench/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "tools/comm_bench/engine_catalogue.h"
#include "tools/comm_bench/rank_session.h"
#include "tools/comm_bench/task.h"

namespace tessera::tools {
namespace {

using collectives::CheckSameUser;
using collectives::Connect;
using collectives::Deadline;
using collectives::Engine;
using collectives::ReceiveAll;
using collectives::SocketAddress;
using topology::Rank;

constexpr std::string_view kWorkerArgument = "--comm_bench_worker";

// How long the parent may take over something that it does at once.
constexpr absl::Duration kSoon = absl::Seconds(30);

Deadline Soon() { return Deadline::After(kSoon); }
Deadline Never() { return Deadline::After(absl::Hours(10'000)); }

absl::StatusOr<UniqueFd> Greet(const std::string& name, int64_t rank) {
  TESSERA_ASSIGN_OR_RETURN(const SocketAddress address,
                           SocketAddress::Abstract(name));
  TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Connect(address, Soon()));
  TESSERA_RETURN_IF_ERROR(CheckSameUser(socket));
  Greeting greeting;
  greeting.rank = rank;
  greeting.pid = getpid();
  TESSERA_RETURN_IF_ERROR(SendGreeting(socket, greeting, Soon()));
  return socket;
}

absl::StatusOr<WorkerSetup> ReceiveSetup(const UniqueFd& socket) {
  WorkerSetup setup;
  TESSERA_RETURN_IF_ERROR(ReceiveAll(
      socket, {reinterpret_cast<char*>(&setup), sizeof(setup)}, Never()));
  setup.engine[sizeof(setup.engine) - 1] = '\0';
  return setup;
}

absl::StatusOr<std::unique_ptr<RankSession>> StartSession(
    absl::StatusOr<std::unique_ptr<Engine>> engine, const WorkerSetup& setup) {
  if (!engine.ok()) return engine.status();
  return RankSession::Create(*std::move(engine), setup.group_size);
}

// Until the parent says quit or goes away.
void Serve(const UniqueFd& socket, RankSession& session) {
  while (true) {
    const absl::StatusOr<Task> task = ReceiveTask(socket, Never());
    if (!task.ok() || task->kind == TaskKind::kQuit) return;
    if (!SendAnswer(socket, session.Execute(*task), Soon()).ok()) return;
  }
}

// Reports whether the session could start, then serves. The engine knows the
// processors of all ranks; from here on this one has its share.
void RunRank(const UniqueFd& socket,
             absl::StatusOr<std::unique_ptr<Engine>> engine, Rank rank,
             const WorkerSetup& setup) {
  if (setup.bind) {
    // Where this is not allowed the rank runs where it may.
    static_cast<void>(BindThisThread(
        ShareOfProcessors(AllowedProcessors(), rank.value(), setup.world)));
  }
  const auto session = StartSession(std::move(engine), setup);
  Answer answer;
  answer.status = session.status();
  if (session.ok()) {
    answer.seconds.push_back((*session)->capabilities().Pack());
  }
  if (!SendAnswer(socket, answer, Soon()).ok() || !session.ok()) return;
  Serve(socket, **session);
}

// The rank that the launcher gave this process: this tool, Open MPI, or a
// process manager that speaks PMI.
absl::StatusOr<int64_t> RankOfProcess() {
  for (const char* name :
       {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    const char* text = std::getenv(name);
    int64_t rank = -1;
    if (text != nullptr && absl::SimpleAtoi(text, &rank) && rank >= 0) {
      return rank;
    }
  }
  return absl::FailedPreconditionError(
      "the launcher has not told this worker its rank");
}

// Null where nobody has passed sockets on.
absl::StatusOr<std::unique_ptr<collectives::Store>> OpenStore(Rank rank,
                                                              int64_t world) {
  const char* value = std::getenv(collectives::kInheritedSocketsVariable);
  if (value == nullptr) return nullptr;
  return collectives::OpenInheritedStore(value, rank, world,
                                         absl::Now() + kSoon);
}

absl::StatusOr<std::unique_ptr<Engine>> MakeOne(
    const EngineCatalogue& catalogue, const WorkerSetup& setup,
    const absl::StatusOr<std::unique_ptr<collectives::Store>>& store,
    Rank rank) {
  if (!store.ok()) return store.status();
  TESSERA_ASSIGN_OR_RETURN(const EngineEntry entry,
                           catalogue.Find(setup.engine));
  RankSeat seat;
  seat.rank = rank;
  seat.world = setup.world;
  seat.store = store->get();
  return entry.make_one(seat);
}

absl::Status RunProcess(const std::string& name,
                        const EngineCatalogue& catalogue) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t rank, RankOfProcess());
  TESSERA_ASSIGN_OR_RETURN(const UniqueFd socket, Greet(name, rank));
  TESSERA_ASSIGN_OR_RETURN(const WorkerSetup setup, ReceiveSetup(socket));
  const auto store = OpenStore(Rank(rank), setup.world);
  RunRank(socket, MakeOne(catalogue, setup, store, Rank(rank)), Rank(rank),
          setup);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::unique_ptr<Engine>>> MakeAll(
    const EngineCatalogue& catalogue, const WorkerSetup& setup) {
  TESSERA_ASSIGN_OR_RETURN(const EngineEntry entry,
                           catalogue.Find(setup.engine));
  return entry.make_all(setup.world);
}

absl::Status RunThreads(const std::string& name, int64_t threads,
                        const EngineCatalogue& catalogue) {
  std::vector<UniqueFd> sockets;
  for (int64_t rank = 0; rank < threads; ++rank) {
    TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Greet(name, rank));
    sockets.push_back(std::move(socket));
  }
  WorkerSetup setup;
  for (const UniqueFd& socket : sockets) {
    TESSERA_ASSIGN_OR_RETURN(setup, ReceiveSetup(socket));
  }
  auto engines = MakeAll(catalogue, setup);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < sockets.size(); ++r) {
    ranks.emplace_back([&, r] {
      const Rank rank(static_cast<int64_t>(r));
      if (engines.ok()) {
        RunRank(sockets[r], std::move((*engines)[r]), rank, setup);
      } else {
        RunRank(sockets[r], engines.status(), rank, setup);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> WorkerArguments(const std::string& socket,
                                         int64_t threads) {
  return {std::string(kWorkerArgument), socket, absl::StrCat(threads)};
}

bool IsWorker(int argc, char** argv) {
  return argc == 4 && argv[1] == kWorkerArgument;
}

int RunWorker(int argc, char** argv, const EngineCatalogue& catalogue) {
  // Under mpirun the parent's parent is mpirun, which dies with the benchmark.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  int64_t threads = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[3], &threads)) return 2;
  const absl::Status status = threads > 0
                                  ? RunThreads(argv[2], threads, catalogue)
                                  : RunProcess(argv[2], catalogue);
  // The parent learns the reason on the socket, or is gone.
  return status.ok() ? 0 : 1;
}

}  // namespace tessera::tools
