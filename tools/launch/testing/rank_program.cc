// A program for launch tests: executes its arguments as actions, in order.
//
//   rank_program say:hello 1@exit:3 sleep:1000
//
// "R@action" is for rank R only. See Actions().
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"

namespace tessera::tools {
namespace {

void Write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) _exit(90);
    text.remove_prefix(static_cast<size_t>(written));
  }
}

std::string Variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

int Number(std::string_view text) {
  int number = 0;
  if (!absl::SimpleAtoi(text, &number)) {
    Write(2, absl::StrCat("no number: ", text, "\n"));
    _exit(91);
  }
  return number;
}

void Sleep(const std::string& millis) {
  timespec left = {Number(millis) / 1000, Number(millis) % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// "N:LENGTH": lines "I xxx...", alternately short and as long as LENGTH.
void Lines(const std::string& argument) {
  const std::vector<std::string> parts = absl::StrSplit(argument, ':');
  const std::string filler(static_cast<size_t>(Number(parts[1])), 'x');
  std::string text;
  for (int i = 0; i < Number(parts[0]); ++i) {
    absl::StrAppend(&text, i, " ", i % 2 == 0 ? "" : filler, "\n");
    // Writes chunks that do not end at line ends.
    if (text.size() < 5000) continue;
    Write(1, std::string_view(text).substr(0, 4999));
    text.erase(0, 4999);
  }
  Write(1, text);
}

void Trap(const std::string& signal) {
  struct sigaction action = {};
  action.sa_handler = [](int number) {
    char text[] = "got 00\n";
    text[4] = static_cast<char>('0' + number / 10);
    text[5] = static_cast<char>('0' + number % 10);
    [[maybe_unused]] const ssize_t written = write(1, text, sizeof(text) - 1);
    if (number != SIGUSR1 && number != SIGCONT) _exit(0);
  };
  sigaction(Number(signal), &action, nullptr);
}

// Starts a child that keeps the output open, ignores SIGTERM and sleeps.
void Background(const std::string& millis) {
  if (fork() != 0) return;
  signal(SIGTERM, SIG_IGN);
  Sleep(millis);
  _exit(0);
}

// Starts a daemon: a process in its own session whose parent has exited.
void Daemon(const std::string& millis) {
  const pid_t middle = fork();
  if (middle != 0) return;
  setsid();
  Background(millis);
  _exit(0);
}

std::vector<int> Sockets() {
  std::vector<int> sockets;
  const std::string text = Variable("TESSERA_INHERITED_SOCKETS");
  if (text.empty()) return sockets;
  for (std::string_view fd : absl::StrSplit(text, ',')) {
    sockets.push_back(Number(fd));
  }
  return sockets;
}

bool IsStream(int fd) {
  int type = 0;
  int family = 0;
  socklen_t size = sizeof(int);
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
         getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
         type == SOCK_STREAM && family == AF_UNIX;
}

// Rank 0 sends every other rank its number, which that rank checks.
void Exchange(const std::string&) {
  const int rank = Number(Variable("RANK"));
  const int world_size = Number(Variable("WORLD_SIZE"));
  const std::vector<int> sockets = Sockets();
  const size_t expected = rank > 0 ? 1 : static_cast<size_t>(world_size - 1);
  if (sockets.size() != expected) _exit(92);
  for (const int fd : sockets) {
    if (!IsStream(fd)) _exit(93);
  }
  for (size_t i = 0; i < sockets.size() && rank == 0; ++i) {
    const int peer = static_cast<int>(i) + 1;
    if (write(sockets[i], &peer, sizeof(peer)) != sizeof(peer)) _exit(94);
    int reply = 0;
    if (read(sockets[i], &reply, sizeof(reply)) != sizeof(reply)) _exit(95);
    if (reply != -peer) _exit(96);
  }
  if (rank == 0) return Write(1, absl::StrCat("met ", sockets.size(), "\n"));
  int mine = 0;
  if (read(sockets[0], &mine, sizeof(mine)) != sizeof(mine)) _exit(95);
  if (mine != rank) _exit(96);
  const int reply = -mine;
  if (write(sockets[0], &reply, sizeof(reply)) != sizeof(reply)) _exit(94);
}

// Waits until the peer of the first inherited socket closes it.
void AwaitClose(const std::string&) {
  char byte;
  if (read(Sockets().at(0), &byte, 1) != 0) _exit(97);
}

// Prints the number of open descriptors above 2.
void Descriptors(const std::string&) {
  int count = 0;
  for (int fd = 3; fd < 10000; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) ++count;
  }
  Write(1, absl::StrCat(count, " descriptors\n"));
}

void Cpus(const std::string&) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::string text = "cpus";
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) absl::StrAppend(&text, " ", cpu);
  }
  Write(1, text + "\n");
}

void Copy(const std::string&) {
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(0, buffer, sizeof(buffer))) > 0) {
    Write(1, {buffer, static_cast<size_t>(got)});
  }
}

// Prints the lines of /proc/self/status about signals.
void Signals(const std::string&) {
  const auto status = ReadFile("/proc/self/status", 1 << 16);
  for (std::string_view line : absl::StrSplit(status.value_or(""), '\n')) {
    if (line.substr(0, 6) == "SigBlk" || line.substr(0, 6) == "SigIgn") {
      Write(1, absl::StrCat(line, "\n"));
    }
  }
}

using Action = void (*)(const std::string& argument);

const std::map<std::string, Action>& Actions() {
  static const auto* const actions = new std::map<std::string, Action>{
      {"say", [](const std::string& text) { Write(1, text + "\n"); }},
      {"complain", [](const std::string& text) { Write(2, text + "\n"); }},
      {"partial", [](const std::string& text) { Write(1, text); }},
      {"lines", Lines},
      {"sleep", Sleep},
      {"exit", [](const std::string& code) { _exit(Number(code)); }},
      {"die", [](const std::string& number) { raise(Number(number)); }},
      {"ignore",
       [](const std::string& number) { signal(Number(number), SIG_IGN); }},
      {"trap", Trap},
      {"env",
       [](const std::string& name) {
         const bool is_set = std::getenv(name.c_str()) != nullptr;
         Write(1, absl::StrCat(name, is_set ? "=" : " unset", Variable(name),
                               "\n"));
       }},
      {"background", Background},
      {"daemon", Daemon},
      {"exchange", Exchange},
      {"await_close", AwaitClose},
      {"descriptors", Descriptors},
      {"cpus", Cpus},
      {"copy", Copy},
      {"signals", Signals},
      {"leads",
       [](const std::string&) {
         const bool leads = getsid(0) == getpid() && getpgrp() == getpid();
         Write(1, leads ? "leads\n" : "follows\n");
       }},
  };
  return *actions;
}

void Run(std::string_view text) {
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    if (text.substr(0, at) != Variable("RANK")) return;
    text.remove_prefix(at + 1);
  }
  const size_t colon = text.find(':');
  const std::string name(text.substr(0, colon));
  const auto action = Actions().find(name);
  if (action == Actions().end()) {
    Write(2, absl::StrCat("no action: ", name, "\n"));
    _exit(98);
  }
  action->second(colon == std::string_view::npos
                     ? ""
                     : std::string(text.substr(colon + 1)));
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) tessera::tools::Run(argv[i]);
}
