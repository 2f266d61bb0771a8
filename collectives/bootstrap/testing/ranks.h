// Helpers for tests with several ranks as threads or processes.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_TESTING_RANKS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_TESTING_RANKS_H_

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"

namespace tessera::collectives {

// A free TCP port on loopback, below the range of ephemeral ports, so that the
// system does not assign it to another test.
inline int FreePort() {
  std::random_device random;
  while (true) {
    const int port = 10000 + static_cast<int>(random() % 10000);
    const auto addresses =
        ResolveTcp("127.0.0.1", port, Deadline::After(absl::Seconds(5)));
    if (Listen(addresses->front()).ok()) return port;
  }
}

// Runs body(0) to body(count - 1), each on its own thread, and waits for all.
inline void RunThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// Starts a process that runs `body` and exits with its result.
inline pid_t StartProcess(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  return pid;
}

// Returns the exit status of a child, or minus the signal that killed it.
inline int WaitForProcess(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// The number of open descriptors of this process.
inline int CountDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_TESTING_RANKS_H_
