// Ranks for tests: as threads, or as processes where processes matter.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_RANKS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_RANKS_H_

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <thread>
#include <vector>

namespace tessera::collectives {

// Runs `body` for 0 to count - 1 on a thread each and waits for all.
inline void RunThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// Starts a process that runs `body` and exits with what it gives.
inline pid_t StartProcess(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  return pid;
}

// The exit status of a child, or minus the signal that ended it.
inline int WaitForProcess(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// How many descriptors this process has open.
inline int CountDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_RANKS_H_
