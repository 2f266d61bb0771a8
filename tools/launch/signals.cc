#include "tools/launch/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::tools {
namespace {

constexpr std::array kWatched = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1,
                                 SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD};

constexpr std::array<std::pair<int, const char*>, 30> kNames = {{
    {SIGABRT, "SIGABRT"}, {SIGALRM, "SIGALRM"},     {SIGBUS, "SIGBUS"},
    {SIGCHLD, "SIGCHLD"}, {SIGCONT, "SIGCONT"},     {SIGFPE, "SIGFPE"},
    {SIGHUP, "SIGHUP"},   {SIGILL, "SIGILL"},       {SIGINT, "SIGINT"},
    {SIGIO, "SIGIO"},     {SIGKILL, "SIGKILL"},     {SIGPIPE, "SIGPIPE"},
    {SIGPROF, "SIGPROF"}, {SIGPWR, "SIGPWR"},       {SIGQUIT, "SIGQUIT"},
    {SIGSEGV, "SIGSEGV"}, {SIGSTKFLT, "SIGSTKFLT"}, {SIGSTOP, "SIGSTOP"},
    {SIGSYS, "SIGSYS"},   {SIGTERM, "SIGTERM"},     {SIGTRAP, "SIGTRAP"},
    {SIGTSTP, "SIGTSTP"}, {SIGTTIN, "SIGTTIN"},     {SIGTTOU, "SIGTTOU"},
    {SIGURG, "SIGURG"},   {SIGUSR1, "SIGUSR1"},     {SIGUSR2, "SIGUSR2"},
    {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},     {SIGWINCH, "SIGWINCH"},
}};

bool IsIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

}  // namespace

std::string SignalName(int signal) {
  for (const auto& [number, name] : kNames) {
    if (number == signal) return name;
  }
  return absl::StrCat("signal ", signal);
}

std::thread StartThreadWithoutSignals(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

absl::StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Create() {
  std::unique_ptr<SignalWatch> watch(new SignalWatch);
  // If SIGCHLD is ignored, the exit status of a child is lost.
  struct sigaction child_action = {};
  child_action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &child_action, &watch->original_child_action_);
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : kWatched) {
    if (signal == SIGCHLD || !IsIgnored(signal)) sigaddset(&watched, signal);
  }
  sigset_t blocked = watched;
  sigaddset(&blocked, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &blocked, &watch->original_mask_);
  watch->fd_.Reset(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!watch->fd_.valid()) {
    return absl::ErrnoToStatus(errno, "cannot watch for signals");
  }
  return watch;
}

SignalWatch::~SignalWatch() {
  while (fd_.valid() && Next()) {
  }
  if (sigismember(&original_mask_, SIGPIPE) == 0) {
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    const timespec no_time = {0, 0};
    sigtimedwait(&broken_pipe, nullptr, &no_time);
  }
  pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
  sigaction(SIGCHLD, &original_child_action_, nullptr);
}

std::optional<int> SignalWatch::Next() const {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void SignalWatch::StopSelf() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // The process stops here.
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
}

}  // namespace tessera::tools
