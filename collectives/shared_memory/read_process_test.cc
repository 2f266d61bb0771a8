#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/shared_memory/shared_memory_domain.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

// A child that waits, with the memory of this process as it was.
class ReadProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < data_.size(); ++i) {
      data_[i] = static_cast<std::byte>(i * 7);
    }
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      while (true) pause();
    }
    std::memset(data_.data(), 0, data_.size());
    if (!MayReadProcess(child_)) GTEST_SKIP() << "not allowed here";
  }
  void TearDown() override { End(); }
  void End() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  uintptr_t At(size_t i) const {
    return reinterpret_cast<uintptr_t>(data_.data() + i);
  }

  std::vector<std::byte> data_ = std::vector<std::byte>(300'001);
  pid_t child_ = 0;
};

TEST_F(ReadProcessTest, CopiesAnyRange) {
  for (const auto& [first, count] : std::vector<std::pair<size_t, size_t>>{
           {0, 0}, {5, 1}, {4095, 2}, {1, 300'000}, {0, 300'001}}) {
    std::vector<std::byte> copy(count);
    ASSERT_THAT(ReadProcess(child_, At(first), copy.data(),
                            static_cast<int64_t>(count)),
                IsOk());
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(copy[i], static_cast<std::byte>((first + i) * 7));
    }
  }
}

TEST_F(ReadProcessTest, MemoryThatIsNotThereIsUnavailable) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // Two pages of this process only: the child has been forked before.
  void* const later = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(later, MAP_FAILED);
  std::vector<std::byte> copy(2 * page);
  EXPECT_THAT(ReadProcess(child_, reinterpret_cast<uintptr_t>(later),
                          copy.data(), static_cast<int64_t>(copy.size())),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("stopped after 0: Bad address")));
  munmap(later, 2 * page);
}

TEST_F(ReadProcessTest, AProcessThatIsGoneIsUnavailable) {
  const pid_t gone = child_;
  End();
  EXPECT_FALSE(MayReadProcess(gone));
  std::byte copy;
  EXPECT_THAT(
      ReadProcess(gone, At(0), &copy, 1),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("No such process")));
}

}  // namespace
}  // namespace tessera::collectives
