// Handles signals as events of a poll loop instead of interruptions.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto watch, SignalWatch::Create());
//   pollfd fds[] = {{watch->fd(), POLLIN, 0}, ...};
//   poll(fds, ...);
//   while (std::optional<int> signal = watch->Next()) { ... }
#ifndef TESSERA_TOOLS_LAUNCH_SIGNALS_H_
#define TESSERA_TOOLS_LAUNCH_SIGNALS_H_

#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::tools {

// "SIGKILL", or "signal 42".
std::string SignalName(int signal);

// Starts a thread that blocks all signals, so that SignalWatch's thread, or a
// handler in another thread, receives them.
std::thread StartThreadWithoutSignals(std::function<void()> body);

// While an object exists, Next returns SIGINT, SIGTERM, SIGHUP, SIGQUIT,
// SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT and SIGCHLD, except those that the process
// ignored before (as under nohup), and SIGPIPE has no effect. Blocks these
// signals in the calling thread; every other thread must block them, too.
// Create and destroy it on the same thread.
class SignalWatch {
 public:
  static absl::StatusOr<std::unique_ptr<SignalWatch>> Create();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when a signal is pending.
  int fd() const { return fd_.get(); }
  // The next pending signal, or nullopt.
  std::optional<int> Next() const;
  // The mask before Create, for programs that are started in the meantime.
  const sigset_t& original_mask() const { return original_mask_; }

  // Stops this process by the default action of SIGTSTP and returns when it is
  // continued. Has no effect in an orphaned process group.
  static void StopSelf();

 private:
  SignalWatch() = default;

  UniqueFd fd_;
  sigset_t original_mask_ = {};
  struct sigaction original_child_action_ = {};
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_SIGNALS_H_
