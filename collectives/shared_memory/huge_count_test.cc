// Tests more than 2^31 elements in little memory: the buffers map the same few
// megabytes repeatedly, so their contents are periodic.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kPeriod = int64_t{32} << 20;
constexpr int64_t kCount = (int64_t{1} << 31) + 12345;

// kCount bytes of address space that map one period repeatedly.
class Periodic {
 public:
  Periodic() {
    const int file = memfd_create("periodic", MFD_CLOEXEC);
    if (ftruncate(file, kPeriod) != 0) std::abort();
    bytes_ = (kCount + kPeriod - 1) / kPeriod * kPeriod;
    start_ = static_cast<int8_t*>(
        mmap(nullptr, static_cast<size_t>(bytes_), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (int64_t at = 0; at < bytes_; at += kPeriod) {
      if (mmap(start_ + at, kPeriod, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        std::abort();
      }
    }
    close(file);
  }
  ~Periodic() { munmap(start_, static_cast<size_t>(bytes_)); }

  Buffer buffer() const { return Buffer(start_, kCount, DType::kI8); }
  int8_t* start() const { return start_; }

 private:
  int64_t bytes_ = 0;
  int8_t* start_ = nullptr;
};

TEST(HugeCountTest, AllReduceOfMoreThanTwoToTheThirtyOne) {
  const auto outcomes = RunSharedMemory(2, [](Communicator& c) -> absl::Status {
    const Periodic input, output;
    std::memset(input.start(), static_cast<int>(3 + c.rank().value()), kPeriod);
    TESSERA_RETURN_IF_ERROR(c.AllReduce(input.buffer(), output.buffer(),
                                        Reduction::Sum(),
                                        {.timeout = absl::Minutes(3)}));
    for (int64_t i = 0; i < kPeriod; ++i) {
      if (output.start()[i] != 7) return absl::InternalError("wrong sum");
    }
    return absl::OkStatus();
  });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
  }
}

TEST(HugeCountTest, MessageOfMoreThanTwoToTheThirtyOne) {
  const auto outcomes = RunSharedMemory(2, [](Communicator& c) -> absl::Status {
    const Periodic memory;
    const CallOptions call{.timeout = absl::Minutes(3)};
    if (c.rank() == Rank(0)) {
      std::memset(memory.start(), 5, kPeriod);
      return c.Send(memory.buffer(), Rank(1), call);
    }
    TESSERA_RETURN_IF_ERROR(c.Receive(memory.buffer(), Rank(0), call));
    for (int64_t i = 0; i < kPeriod; ++i) {
      if (memory.start()[i] != 5) return absl::InternalError("wrong byte");
    }
    return absl::OkStatus();
  });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
  }
}

}  // namespace
}  // namespace tessera::collectives
