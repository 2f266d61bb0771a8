#include "collectives/testing/run_ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/in_process/in_process.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

absl::Status RunRank(std::unique_ptr<Engine> engine, const RankBody& body,
                     const CommunicatorOptions& options) {
  auto communicator = Communicator::Create(std::move(engine), options);
  if (!communicator.ok()) return communicator.status();
  absl::Status status = body(**communicator);
  if (!status.ok()) (*communicator)->Abort(status.message());
  return status;
}

}  // namespace

std::vector<absl::Status> RunRanks(int64_t ranks, const RankBody& body,
                                   const CommunicatorOptions& options) {
  return RunRanksOn(CreateInProcessEngines(ranks), body, options);
}

std::vector<absl::Status> RunRanksOn(
    absl::StatusOr<std::vector<std::unique_ptr<Engine>>> engines,
    const RankBody& body, const CommunicatorOptions& options) {
  if (!engines.ok()) return {engines.status()};
  std::vector<absl::Status> statuses(engines->size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < engines->size(); ++r) {
    threads.emplace_back([&, r] {
      statuses[r] = RunRank(std::move((*engines)[r]), body, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

namespace {

struct Child {
  pid_t pid = -1;
  int pipe = -1;  // Source of its status; -1 when closed.
  std::string text;
};

// Runs in the child; does not return.
[[noreturn]] void BeChild(int64_t rank, int pipe, const EngineOfRank& engine,
                          const RankBody& body,
                          const CommunicatorOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  absl::Status status;
  {
    auto made = engine(rank);
    auto communicator =
        made.ok()
            ? Communicator::Create(*std::move(made), options)
            : absl::StatusOr<std::unique_ptr<Communicator>>(made.status());
    status = communicator.ok() ? body(**communicator) : communicator.status();
    // Report before destroying the communicator, which waits for running
    // operations.
    if (status.ok() && ::testing::Test::HasFailure()) {
      status = absl::InternalError("an expectation failed in the child");
    }
    const std::string text =
        absl::StrCat(static_cast<int>(status.code()), " ", status.message());
    if (write(pipe, text.data(), text.size()) < 0) _exit(3);
    close(pipe);
  }
  std::cout.flush();
  // Calls _exit because the parent's exit handlers must not run in the child.
  _exit(0);
}

Child Fork(int64_t rank, const EngineOfRank& engine, const RankBody& body,
           const CommunicatorOptions& options) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::cout.flush();
  const pid_t pid = fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    close(ends[0]);
    BeChild(rank, ends[1], engine, body, options);
  }
  close(ends[1]);
  return {pid, ends[0], ""};
}

bool IsStopped(const Child& child) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(child.pid), &info,
                WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child.pid;
}

// Reads from the children; returns false when all pipes are closed.
bool ReadOnce(std::vector<Child>& children, std::vector<RankOutcome>& outcomes,
              absl::Time start) {
  std::vector<pollfd> polls;
  std::vector<size_t> owners;
  for (size_t r = 0; r < children.size(); ++r) {
    if (children[r].pipe < 0) continue;
    polls.push_back({children[r].pipe, POLLIN, 0});
    owners.push_back(r);
  }
  if (polls.empty()) return false;
  poll(polls.data(), polls.size(), 20);
  for (size_t i = 0; i < polls.size(); ++i) {
    if (polls[i].revents == 0) continue;
    Child& child = children[owners[i]];
    char bytes[4096];
    const ssize_t count = read(child.pipe, bytes, sizeof(bytes));
    if (count > 0) {
      child.text.append(bytes, static_cast<size_t>(count));
      continue;
    }
    outcomes[owners[i]].took = absl::Now() - start;
    close(std::exchange(child.pipe, -1));
  }
  return true;
}

absl::Status ParseStatus(const std::string& text) {
  const size_t space = text.find(' ');
  int code = 0;
  if (space == std::string::npos ||
      !absl::SimpleAtoi(text.substr(0, space), &code)) {
    return absl::UnknownError("the process ended without a status");
  }
  return absl::Status(static_cast<absl::StatusCode>(code),
                      text.substr(space + 1));
}

// Kills the remaining children, or only stopped ones if `only_stopped`.
void Kill(const std::vector<Child>& children, bool only_stopped) {
  for (const Child& child : children) {
    if (child.pipe < 0) continue;
    if (!only_stopped || IsStopped(child)) kill(child.pid, SIGKILL);
  }
}

bool OnlyStoppedAreLeft(const std::vector<Child>& children) {
  return std::all_of(children.begin(), children.end(), [](const Child& child) {
    return child.pipe < 0 || IsStopped(child);
  });
}

}  // namespace

std::vector<RankOutcome> RunProcesses(int64_t ranks, const EngineOfRank& engine,
                                      const RankBody& body,
                                      const CommunicatorOptions& options,
                                      absl::Duration limit,
                                      const std::function<void()>& forked) {
  const absl::Time start = absl::Now();
  std::vector<Child> children;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    children.push_back(Fork(rank, engine, body, options));
  }
  if (forked) forked();
  std::vector<RankOutcome> outcomes(children.size());
  while (ReadOnce(children, outcomes, start)) {
    if (absl::Now() - start > limit) Kill(children, /*only_stopped=*/false);
    if (OnlyStoppedAreLeft(children)) Kill(children, /*only_stopped=*/true);
  }
  for (size_t r = 0; r < children.size(); ++r) {
    outcomes[r].status = ParseStatus(children[r].text);
    // A child that has reported may still wait for started operations until
    // their deadlines.
    int status = 0;
    waitpid(children[r].pid, &status, 0);
    if (WIFSIGNALED(status)) outcomes[r].signal = WTERMSIG(status);
  }
  return outcomes;
}

std::vector<RankOutcome> RunOverStore(int64_t ranks,
                                      const EngineOfStore& create,
                                      const RankBody& body,
                                      const CommunicatorOptions& options) {
  auto sockets = MakeInheritedSockets(ranks);
  if (!sockets.ok()) return {{sockets.status(), 0, absl::ZeroDuration()}};
  // Lives until the rank's process ends.
  std::unique_ptr<Store> store;
  const auto engine =
      [&](int64_t rank) -> absl::StatusOr<std::unique_ptr<Engine>> {
    const auto self = static_cast<size_t>(rank);
    for (size_t r = 0; r < sockets->size(); ++r) {
      if (r != self) (*sockets)[r].sockets.clear();
    }
    if (!(*sockets)[self].PassOn()) return absl::InternalError("PassOn");
    for (UniqueFd& socket : (*sockets)[self].sockets) {
      static_cast<void>(socket.Release());  // The store takes ownership.
    }
    TESSERA_ASSIGN_OR_RETURN(
        store, OpenInheritedStore((*sockets)[self].value, Rank(rank), ranks,
                                  absl::Now() + absl::Seconds(60)));
    return create(*store);
  };
  return RunProcesses(ranks, engine, body, options, absl::Seconds(120),
                      [&] { sockets->clear(); });
}

std::vector<RankOutcome> RunSharedMemory(
    int64_t ranks, const RankBody& body, const CommunicatorOptions& options,
    const SharedMemoryOptions& shared_memory) {
  return RunOverStore(
      ranks,
      [&](Store& store) {
        return CreateSharedMemoryEngine(store, shared_memory);
      },
      body, options);
}

}  // namespace tessera::collectives
