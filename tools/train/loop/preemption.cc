#include "tools/train/loop/preemption.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

// Schedulers send a signal to every process of a job, and launchers forward it:
// what arrives within this time is one signal.
constexpr std::chrono::seconds kSameSignal{1};
constexpr signed char kEnd = -1;  // Ends the thread.

std::atomic<int> signal_writer = -1;

void WriteSignal(int signal) {
  const int error = errno;
  const auto byte = static_cast<signed char>(signal);
  [[maybe_unused]] const ssize_t written = write(signal_writer, &byte, 1);
  errno = error;
}

sigset_t WatchedSignals() {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGTERM);
  sigaddset(&watched, SIGUSR1);
  sigaddset(&watched, kNewHostSignal);
  return watched;
}

}  // namespace

std::string_view StopCauseName(StopCause cause) {
  switch (cause) {
    case StopCause::kNewHost:
      return "a new host";
    case StopCause::kTimeLimit:
      return "--time_limit";
    case StopCause::kUserSignal:
      return "SIGUSR1";
    case StopCause::kTerminate:
      return "SIGTERM";
    case StopCause::kNone:
      break;
  }
  return "";
}

absl::StatusOr<std::unique_ptr<Preemption>> Preemption::Watch(
    const Settings& settings, std::function<void(StopCause)> give_up) {
  std::unique_ptr<Preemption> preemption(new Preemption);
  const Clock::time_point now = Clock::now();
  TESSERA_ASSIGN_OR_RETURN(const absl::Duration grace,
                           ParseTimeSpan(settings.grace_period));
  preemption->grace_ = absl::ToChronoNanoseconds(grace);
  if (!settings.time_limit.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const absl::Duration limit,
                             ParseTimeSpan(settings.time_limit));
    preemption->limit_ = now + absl::ToChronoNanoseconds(limit);
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot watch for signals");
  }
  preemption->reader_.Reset(ends[0]);
  preemption->writer_.Reset(ends[1]);
  preemption->give_up_ = std::move(give_up);
  preemption->HandleSignals();
  preemption->thread_ = std::thread([raw = preemption.get()] { raw->Run(); });
  return preemption;
}

void Preemption::HandleSignals() {
  signal_writer = writer_.get();
  const sigset_t watched = WatchedSignals();
  pthread_sigmask(SIG_BLOCK, &watched, &original_mask_);
  struct sigaction action = {};
  action.sa_handler = WriteSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &original_terminate_);
  sigaction(SIGUSR1, &action, &original_user_);
  sigaction(kNewHostSignal, &action, &original_new_host_);
}

Preemption::~Preemption() {
  if (!thread_.joinable()) return;
  WriteSignal(kEnd);
  thread_.join();
  sigaction(SIGTERM, &original_terminate_, nullptr);
  sigaction(SIGUSR1, &original_user_, nullptr);
  sigaction(kNewHostSignal, &original_new_host_, nullptr);
  pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
}

void Preemption::Run() {
  const sigset_t watched = WatchedSignals();
  pthread_sigmask(SIG_UNBLOCK, &watched, nullptr);
  Clock::time_point deadline = limit_ == kNever ? kNever : limit_ - grace_;
  std::optional<Clock::time_point> terminated;
  while (true) {
    const int signal = NextSignal(deadline);
    if (signal == kEnd) return;
    if (signal == kNewHostSignal) {
      if (cause_ == StopCause::kNone && has_begun_) {
        cause_ = StopCause::kNewHost;
      }
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (signal == SIGTERM) {
      if (terminated && now - *terminated > kSameSignal) GiveUp();
      terminated = terminated.value_or(now);
    }
    if (cause_ <= StopCause::kNewHost) {
      deadline = std::min(limit_, now + grace_);
      cause_ = signal == SIGTERM   ? StopCause::kTerminate
               : signal == SIGUSR1 ? StopCause::kUserSignal
                                   : StopCause::kTimeLimit;
      if (signal != 0 && !has_begun_) GiveUp();
    } else if (signal == 0) {
      GiveUp();
    }
  }
}

int Preemption::NextSignal(Clock::time_point deadline) const {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(1);
  while (true) {
    signed char byte = 0;
    if (read(reader_.get(), &byte, 1) == 1) return byte;
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return 0;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<Clock::duration>(deadline - now, kLongest));
    pollfd readable = {reader_.get(), POLLIN, 0};
    poll(&readable, 1, static_cast<int>(left.count()));
  }
}

void Preemption::GiveUp() const {
  give_up_(cause_);
  _exit(kExitCode);
}

}  // namespace tessera::train
