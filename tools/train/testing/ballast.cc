// Unpredicted memory in one rank of a run, for tests. Preloaded (LD_PRELOAD)
// into //tools/train, it allocates memory after each step, like a leak.
//
//   TESSERA_TEST_BALLAST="1 8388608 41943040 /tmp/run/metrics.jsonl"
//
// The process of rank 1 allocates 8 MiB for each line of that file, at most 40
// MiB. Other processes allocate nothing.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace {

struct Ballast {
  std::string rank;
  int64_t bytes_a_line = 0;
  int64_t most = 0;
  std::string path;
};

bool IsRankProcess() {
  std::ifstream file("/proc/self/cmdline");
  std::stringstream arguments;
  arguments << file.rdbuf();
  return arguments.str().find("--rank_of") != std::string::npos;
}

int64_t LinesOf(const std::string& path) {
  std::ifstream file(path);
  int64_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

// Allocates memory that is never freed.
void Take(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) std::memset(memory, 1, size);
}

void Grow(const Ballast& ballast) {
  for (int64_t taken = 0; taken < ballast.most;) {
    const int64_t wanted =
        std::min(LinesOf(ballast.path) * ballast.bytes_a_line, ballast.most);
    if (wanted > taken) Take(wanted - taken);
    taken = std::max(taken, wanted);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

[[gnu::constructor]] void Begin() {
  const char* const text = std::getenv("TESSERA_TEST_BALLAST");
  const char* const rank = std::getenv("RANK");
  if (text == nullptr || rank == nullptr || !IsRankProcess()) return;
  Ballast ballast;
  std::istringstream(text) >> ballast.rank >> ballast.bytes_a_line >>
      ballast.most >> ballast.path;
  if (ballast.rank == rank) std::thread(Grow, ballast).detach();
}

}  // namespace
