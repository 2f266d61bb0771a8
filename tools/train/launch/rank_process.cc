#include "tools/train/launch/rank_process.h"

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/engine/operation_context.h"
#include "collectives/in_process/in_process.h"
#include "tools/train/launch/world.h"
#include "tools/train/settings/settings_json.h"

namespace tessera::train {
namespace {

using collectives::Engine;

constexpr std::string_view kRankArgument = "--rank_of";
constexpr std::string_view kTerminal = "terminal";
constexpr std::string_view kNoTerminal = "no_terminal";

// What ranks of this process tell; thread-safe.
struct RankEvents {
  // A rank's failure, before the others hear of it: theirs come later.
  std::function<void(const RankReport&)> on_failure;
  std::function<void()> on_step = [] {};
  std::ostream* progress = nullptr;
  bool is_terminal = false;
};

RankReport ReportOf(int64_t rank, absl::Status status) {
  return {rank, collectives::MonotonicNanos(), std::move(status)};
}

// Runs the program; the others stop waiting for a rank that failed.
absl::StatusOr<std::string> RunRank(const World& world,
                                    const RankProgram& program,
                                    const RankEvents& events) {
  absl::StatusOr<std::string> result =
      program({.world = *world.communicator,
               .collectives = world.collectives,
               .on_step = events.on_step,
               .progress = events.progress,
               .is_terminal = events.is_terminal});
  const int64_t rank = world.communicator->rank().value();
  if (result.ok()) return rank == 0 ? std::move(result) : "";
  events.on_failure(ReportOf(rank, result.status()));
  world.collectives->AbortAll(result.status());
  world.communicator->Abort(result.status().message());
  return result;
}

absl::StatusOr<std::string> RunThread(const Settings& settings,
                                      std::unique_ptr<Engine> engine,
                                      const RankProgram& program,
                                      const RankEvents& events) {
  const int64_t rank = engine->rank().value();
  const absl::StatusOr<World> world = MakeWorld(settings, std::move(engine));
  if (world.ok()) return RunRank(*world, program, events);
  events.on_failure(ReportOf(rank, world.status()));
  return world.status();
}

absl::StatusOr<std::string> RunEveryThread(const Settings& settings,
                                           const RankProgram& program,
                                           const RankEvents& events) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t size, WorldSize(settings));
  TESSERA_ASSIGN_OR_RETURN(auto engines,
                           collectives::CreateInProcessEngines(size));
  std::vector<absl::StatusOr<std::string>> results(engines.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < engines.size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] =
          RunThread(settings, std::move(engines[rank]), program, events);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    if (!result.ok()) return result.status();
  }
  return std::move(results[0]);
}

absl::StatusOr<std::string> RunOnlyRank(const Settings& settings,
                                        const RankProgram& program,
                                        const RankEvents& events) {
  const auto lookup =
      RankVariables(settings, collectives::ProcessEnvironment());
  const absl::StatusOr<World> world = JoinWorld(settings, lookup);
  if (!world.ok()) return world.status();
  return RunRank(*world, program, events);
}

absl::Status RunProcess(const AttemptFiles& files, const MakeRankProgram& make,
                        const Settings& settings, const RankEvents& events) {
  TESSERA_ASSIGN_OR_RETURN(const RankProgram program, make(settings));
  const auto run =
      settings.engine == "in_process" ? RunEveryThread : RunOnlyRank;
  TESSERA_ASSIGN_OR_RETURN(const std::string result,
                           run(settings, program, events));
  if (result.empty()) return absl::OkStatus();
  return WriteFile(files.result(), result);
}

// The rank that this process is for its launcher; 0 where it does not say.
int64_t RankOfProcess(const Settings& settings) {
  const auto place = topology::ReadLauncherEnvironment(
      RankVariables(settings, collectives::ProcessEnvironment()));
  return place.ok() ? place->rank.value() : 0;
}

}  // namespace

std::vector<std::string> RankArguments(const AttemptFiles& files,
                                       bool is_terminal) {
  return {std::string(kRankArgument), files.directory,
          std::string(is_terminal ? kTerminal : kNoTerminal)};
}

bool IsRankProcess(int argc, char** argv) {
  return argc == 4 && argv[1] == kRankArgument;
}

int RankProcessMain(int argc, char** argv, const MakeRankProgram& make) {
  if (!IsRankProcess(argc, argv)) return 2;
  signal(SIGPIPE, SIG_IGN);
  const AttemptFiles files = {argv[2]};
  std::atomic<bool> has_reported = false;
  std::once_flag stepped;
  RankEvents events;
  events.on_failure = [&](const RankReport& failure) {
    has_reported = true;
    // Where this fails too, the exit code is what is left to tell.
    files.WriteReport(failure).IgnoreError();
  };
  events.on_step = [&] { std::call_once(stepped, [&] { files.MarkStep(); }); };
  events.progress = &std::cerr;
  events.is_terminal = argv[3] == kTerminal;
  const absl::StatusOr<Settings> settings = ReadSettings(files.settings());
  const absl::Status status = settings.ok()
                                  ? RunProcess(files, make, *settings, events)
                                  : settings.status();
  if (status.ok()) return 0;
  if (!has_reported) {
    events.on_failure(
        ReportOf(RankOfProcess(settings.value_or(Settings())), status));
  }
  return 1;
}

absl::StatusOr<std::string> RunThreads(const Settings& settings,
                                       const RankProgram& program) {
  std::mutex mutex;
  std::vector<RankReport> reports;
  RankEvents events;
  events.on_failure = [&](const RankReport& report) {
    const std::lock_guard lock(mutex);
    reports.push_back(report);
  };
  absl::StatusOr<std::string> result =
      RunEveryThread(settings, program, events);
  const RankReport* const cause = FindCause(reports);
  if (cause == nullptr) return result;
  return NameRank(*cause);
}

}  // namespace tessera::train
