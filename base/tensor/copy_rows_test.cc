#include "base/tensor/copy_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr std::byte kUntouched{0xcd};

// Every length around the block sizes; rows adjacent, apart and in reverse
// order; unaligned memory.
TEST(CopyRowsTest, CopiesEveryRowAndNothingElse) {
  std::mt19937_64 random(1);
  for (int64_t bytes = 0; bytes <= 600; ++bytes) {
    for (const int64_t rows : {0, 1, 2, 7}) {
      for (const int64_t gap : {0, 1, 24}) {
        for (const bool backwards : {false, true}) {
          const int64_t source_pitch = bytes + gap;
          const int64_t target_pitch = bytes + (gap * 3) % 5;
          std::vector<std::byte> from(
              static_cast<size_t>((rows + 1) * source_pitch + 3));
          for (std::byte& b : from) b = static_cast<std::byte>(random());
          std::vector<std::byte> to(
              static_cast<size_t>((rows + 1) * target_pitch + 5), kUntouched);
          std::vector<std::byte> expected = to;
          const int64_t source_begin =
              3 + (backwards ? rows : 0) * source_pitch;
          const RowCopy copy = {
              .rows = rows,
              .bytes = bytes,
              .source_step = backwards ? -source_pitch : source_pitch,
              .target_step = target_pitch};
          for (int64_t row = 0; bytes > 0 && row < rows; ++row) {
            std::memcpy(expected.data() + 2 + row * target_pitch,
                        from.data() + source_begin + row * copy.source_step,
                        static_cast<size_t>(bytes));
          }
          if (backwards) {
            // One row beyond the first, which the loop must not read.
            from.resize(static_cast<size_t>(source_begin + bytes));
          }
          CopyRows(copy, from.data() + source_begin, to.data() + 2);
          ASSERT_EQ(to, expected) << bytes << " bytes, " << rows << " rows";
        }
      }
    }
  }
}

// Rows written with non-temporal stores, contiguous and far apart, unaligned.
TEST(CopyRowsTest, MovesLargeTargets) {
  constexpr int64_t kSpan = (int64_t{16} << 20) + 1000;
  std::vector<std::byte> from(kSpan + 64), to(kSpan + 64);
  std::mt19937_64 random(2);
  for (std::byte& b : from) b = static_cast<std::byte>(random());
  for (const int64_t rows : {1, 3, 5000}) {
    for (const int64_t gap : {0, 77}) {
      for (const int64_t shift : {0, 1, 63}) {
        const int64_t step = kSpan / rows;
        const RowCopy copy = {.rows = rows,
                              .bytes = step - gap,
                              .source_step = step,
                              .target_step = step};
        std::fill(to.begin(), to.end(), kUntouched);
        CopyRows(copy, from.data() + 1, to.data() + shift);
        for (int64_t row = 0; row < rows; ++row) {
          const std::byte* const target = to.data() + shift + row * step;
          ASSERT_EQ(std::memcmp(target, from.data() + 1 + row * step,
                                static_cast<size_t>(copy.bytes)),
                    0);
          ASSERT_TRUE(std::all_of(target + copy.bytes, target + step,
                                  [](std::byte b) { return b == kUntouched; }));
        }
        ASSERT_TRUE(std::all_of(to.data(), to.data() + shift,
                                [](std::byte b) { return b == kUntouched; }));
      }
    }
  }
}

}  // namespace
}  // namespace tessera
