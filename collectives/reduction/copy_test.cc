#include "collectives/reduction/copy.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace tessera::collectives {
namespace {

TEST(CopyBytesTest, CopiesEveryLengthAtEveryAlignment) {
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    std::vector<uint8_t> in(5000);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 7);
    for (StoreMode mode : {StoreMode::kCached, StoreMode::kStreaming}) {
      for (size_t bytes : {0, 1, 63, 64, 65, 127, 128, 1000, 4096, 4800}) {
        for (size_t shift : {0, 1, 31, 63}) {
          std::vector<uint8_t> out(5000, 0xee);
          CopyBytes(&out[shift], &in[shift / 2], static_cast<int64_t>(bytes),
                    mode);
          EXPECT_EQ(std::memcmp(&out[shift], &in[shift / 2], bytes), 0);
          EXPECT_EQ(out[shift + bytes], 0xee);
          if (shift > 0) {
            EXPECT_EQ(out[shift - 1], 0xee);
          }
        }
      }
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

TEST(CopyBytesTest, AcceptsNullForZeroBytes) {
  CopyBytes(nullptr, nullptr, 0);
  CopyBytes(nullptr, nullptr, 0, StoreMode::kStreaming);
}

}  // namespace
}  // namespace tessera::collectives
