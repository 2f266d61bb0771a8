#include "tools/launch/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/status_macros.h"

namespace tessera::tools {
namespace {

// Listing processes costs; zombies of descendants do not hurry.
constexpr std::chrono::seconds kReapInterval{1};
// A rank that dies takes others along, and their ends may be seen before its
// own: so long all failures are one event.
constexpr std::chrono::milliseconds kSettleTime{20};
// What is farther away than this never comes.
constexpr absl::Duration kForever = absl::Hours(24 * 365 * 10);

std::optional<std::chrono::steady_clock::time_point> After(
    absl::Duration duration) {
  if (duration > kForever) return std::nullopt;
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
}

}  // namespace

Supervisor::Supervisor(const LaunchPlan& plan, const SignalWatch& signals,
                       RankProcesses& ranks, OutputMultiplexer& output)
    : plan_(plan), signals_(signals), ranks_(ranks), output_(output) {
  outcome_.timeout = plan.timeout;
}

absl::StatusOr<LaunchOutcome> Supervisor::Run() {
  timeout_at_ = After(plan_.timeout);
  while (!ranks_.Running().empty()) Step();
  return Finish();
}

void Supervisor::Step() {
  fds_ = {{signals_.fd(), POLLIN, 0}, {ranks_.fd(), POLLIN, 0}};
  output_.AppendPollFds(fds_);
  poll(fds_.data(), fds_.size(), PollMillis());
  HandleSignals();
  HandleExits();
  output_status_.Update(output_.Service(fds_, Clock::now()));
  if (!output_status_.ok()) BeginEnd(SIGTERM);
  HandleTimers();
}

int Supervisor::PollMillis() const {
  const Time now = Clock::now();
  int millis = output_.PollMillis(now);
  for (const std::optional<Time>& time :
       {timeout_at_, kill_at_, settle_at_, reap_at_}) {
    if (!time) continue;
    const int64_t left =
        std::chrono::ceil<std::chrono::milliseconds>(*time - now).count();
    const int bounded = static_cast<int>(
        std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
    millis = millis < 0 ? bounded : std::min(millis, bounded);
  }
  return millis;
}

void Supervisor::HandleSignals() {
  while (const std::optional<int> signal = signals_.Next()) {
    HandleSignal(*signal);
  }
}

void Supervisor::HandleSignal(int signal) {
  switch (signal) {
    case SIGCHLD:
      if (!reap_at_) reap_at_ = Clock::now() + kReapInterval;
      return;
    case SIGTSTP:
      Pause();
      return;
    case SIGCONT:
    case SIGUSR1:
    case SIGUSR2:
      ranks_.Signal(signal);
      return;
    default:
      HandleEndingSignal(signal);
  }
}

void Supervisor::HandleEndingSignal(int signal) {
  if (!is_ending_) {
    if (!outcome_.failure) outcome_.signal = signal;
    BeginEnd(signal);
  } else if (signal == SIGINT) {
    is_impatient_ = true;
    Kill();
  } else {
    ranks_.Signal(signal);
  }
}

void Supervisor::HandleExits() {
  for (RankExit& exit : ranks_.TakeExits()) {
    if (!exit.success() && !is_ending_) NoteFailure(exit);
    outcome_.exits.push_back(std::move(exit));
  }
}

void Supervisor::NoteFailure(const RankExit& exit) {
  if (!outcome_.failure) {
    outcome_.failure = exit;
    settle_at_ = Clock::now() + kSettleTime;
    return;
  }
  outcome_.also_failed.push_back(exit);
  if (exit.by_signal && !outcome_.failure->by_signal) {
    std::swap(*outcome_.failure, outcome_.also_failed.back());
  }
}

void Supervisor::HandleTimers() {
  const Time now = Clock::now();
  if (settle_at_ && now >= *settle_at_) BeginEnd(SIGTERM);
  if (reap_at_ && now >= *reap_at_) {
    reap_at_.reset();
    ranks_.ReapOrphans();
  }
  if (timeout_at_ && now >= *timeout_at_) {
    timeout_at_.reset();
    if (!outcome_.failure) outcome_.timed_out = ranks_.Running();
    BeginEnd(SIGTERM);
  }
  if (kill_at_ && now >= *kill_at_) Kill();
}

void Supervisor::BeginEnd(int signal) {
  if (is_ending_) return;
  is_ending_ = true;
  kill_at_ = After(plan_.grace);
  timeout_at_.reset();
  settle_at_.reset();
  ranks_.Signal(signal);
  ranks_.Signal(SIGCONT);  // A stopped process would not see it.
}

void Supervisor::Kill() {
  kill_at_.reset();
  ranks_.Signal(SIGKILL);
}

void Supervisor::Pause() {
  // Not SIGTSTP: the ranks' sessions have no terminal, and so it has no effect
  // there by default.
  ranks_.Signal(SIGSTOP);
  const Time stopped = Clock::now();
  SignalWatch::StopSelf();
  const Clock::duration pause = Clock::now() - stopped;
  ranks_.Signal(SIGCONT);
  if (timeout_at_) *timeout_at_ += pause;
  if (kill_at_) *kill_at_ += pause;
}

absl::StatusOr<LaunchOutcome> Supervisor::Finish() {
  const absl::Status killed = ranks_.KillAll();
  output_status_.Update(output_.ReadRemaining());
  // A slow reader, such as a pager, gets everything, unless somebody wants
  // this to be over.
  const bool must_end = outcome_.signal || !outcome_.timed_out.empty();
  kill_at_ = must_end ? After(plan_.grace) : std::nullopt;
  timeout_at_.reset();
  while (output_.has_pending() && !is_impatient_) {
    if (kill_at_ && Clock::now() >= *kill_at_) break;
    fds_ = {{signals_.fd(), POLLIN, 0}};
    output_.AppendPollFds(fds_);
    poll(fds_.data(), fds_.size(), PollMillis());
    HandleSignals();
    output_status_.Update(output_.Service(fds_, Clock::now()));
  }
  TESSERA_RETURN_IF_ERROR(killed);
  const bool has_ended_otherwise = outcome_.failure || must_end;
  if (!has_ended_otherwise) TESSERA_RETURN_IF_ERROR(output_status_);
  return std::move(outcome_);
}

}  // namespace tessera::tools
