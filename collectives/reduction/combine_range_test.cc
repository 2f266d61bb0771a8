// Tests more elements than an int32_t can count in little memory: the same
// pages are mapped repeatedly, followed by separate pages.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "collectives/reduction/combine.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kEnd = size_t{1} << 31;  // End of the repeated pages.
constexpr size_t kBytes = kEnd + kPage;

// kBytes of address space: kPage bytes mapped repeatedly, then kPage separate
// bytes.
class LongBuffer {
 public:
  LongBuffer() : file_(memfd_create("repeated", MFD_CLOEXEC)) {
    if (file_ < 0 || ftruncate(file_, kPage) != 0) return;
    void* const place =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return;
    bytes_ = static_cast<uint8_t*>(place);
    for (size_t at = 0; at < kEnd; at += kPage) {
      whole_ = mmap(bytes_ + at, kPage, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, file_, 0) != MAP_FAILED;
      if (!whole_) return;
    }
  }
  LongBuffer(const LongBuffer&) = delete;
  LongBuffer& operator=(const LongBuffer&) = delete;
  ~LongBuffer() {
    if (bytes_ != nullptr) munmap(bytes_, kBytes);
    if (file_ >= 0) close(file_);
  }

  bool whole() const { return whole_; }
  uint8_t* data() { return bytes_; }

 private:
  int file_;
  uint8_t* bytes_ = nullptr;
  bool whole_ = false;
};

TEST(CombineRangeTest, MoreThanTwoToTheThirtyFirstElements) {
  LongBuffer from, to;
  ASSERT_TRUE(from.whole() && to.whole());
  std::memset(from.data(), 3, kPage);
  std::memset(from.data() + kEnd, 5, kPage);
  const void* const sources[] = {from.data(), from.data()};
  void* const destinations[] = {to.data()};
  constexpr size_t kLast = 1000;  // Elements past the repeated pages.
  Combine(Combination::Partial(Reduction::Sum(), DType::kU8), sources,
          destinations, int64_t{kEnd + kLast});
  for (size_t i = 0; i < kPage; ++i) {
    ASSERT_EQ(to.data()[i], 6) << i;
    ASSERT_EQ(to.data()[kEnd + i], i < kLast ? 10 : 0) << i;
  }
}

}  // namespace
}  // namespace tessera::collectives
