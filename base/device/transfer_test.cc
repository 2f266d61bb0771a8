#include "base/device/transfer.h"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/device/cuda_memory.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A view of rows 0 1 2, 3 4 5 by columns.
class TransferTest : public ::testing::Test {
 protected:
  TransferTest() { std::iota(values_.begin(), values_.end(), 0); }

  // Host memory labelled as device memory, for errors that must be found before
  // any access.
  TensorView FakeDevice(const Layout& layout) {
    return *TensorView::Create(std::as_writable_bytes(std::span(fake_)),
                               DType::kI32, layout, 0, MemoryKind::kCudaDevice);
  }

  std::vector<int32_t> values_ = std::vector<int32_t>(6);
  std::vector<int32_t> fake_ = std::vector<int32_t>(12, -1);
  const TensorView matrix_ = *TensorView::Of(std::span(values_), {{2, 3}});
  const TensorView columns_ = *matrix_.Transpose(0, 1);
};

TEST_F(TransferTest, BetweenHostMemoriesPacksAnyStrides) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               Transfer(columns_, HostMemory()));
  TESSERA_ASSERT_OK_AND_ASSIGN(std::span<const int32_t> x,
                               tensor.view().AsSpan<int32_t>());
  EXPECT_THAT(x, ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(tensor.shape(), ElementsAre(3, 2));
}

TEST_F(TransferTest, RefusesBeforeTouchingAnything) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Layout row_major = *Layout::RowMajor({{2, 3}});
  EXPECT_THAT(Transfer(columns_, FakeDevice(row_major)),
              StatusIs(kInvalid, HasSubstr("[3,2] of i32 to shape [2,3]")));
  EXPECT_THAT(
      Transfer(matrix_, FakeDevice(*Layout::Strided({{2, 3}}, {{0, 1}}))),
      StatusIs(kInvalid, HasSubstr("several indices")));
  const TensorView strided = FakeDevice(*Layout::Strided({{2, 3}}, {{4, 1}}));
  EXPECT_THAT(Transfer(matrix_, strided),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("only contiguous views")));
  EXPECT_THAT(Transfer(strided, matrix_),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(Transfer(matrix_, nullptr), StatusIs(kInvalid));
  EXPECT_THAT(fake_, Each(-1));
  EXPECT_THAT(values_, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(TransferTest, WithoutADeviceSaysWhatTheRuntimeSays) {
  const absl::StatusOr<int> count = CudaDeviceCount();
  if (count.ok()) GTEST_SKIP() << "this machine has a CUDA device";
  const TensorView device = FakeDevice(*Layout::RowMajor({{2, 3}}));
  EXPECT_EQ(Transfer(matrix_, device), count.status());
  EXPECT_EQ(Transfer(device, matrix_), count.status());
  EXPECT_EQ(Transfer(device, device), count.status());
  EXPECT_THAT(fake_, Each(-1));
}

TEST_F(TransferTest, ElementsSurviveTheWayThroughADevice) {
  if (const auto count = CudaDeviceCount(); !count.ok()) {
    GTEST_SKIP() << "no CUDA device: " << count.status();
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(auto memory, CudaDeviceMemory(0));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto pinned, PinnedHostMemory());
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor a, Transfer(columns_, memory));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor b, Transfer(a.view(), memory));
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor c, Transfer(b.view(), pinned));
  TESSERA_ASSERT_OK_AND_ASSIGN(std::span<int32_t> x,
                               c.view().AsSpan<int32_t>());
  EXPECT_THAT(x, ElementsAre(0, 3, 1, 4, 2, 5));
  std::vector<int32_t> back(6);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView target,
                               TensorView::Of(std::span(back), {{2, 3}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(target, target.Transpose(0, 1));
  TESSERA_ASSERT_OK(Transfer(b.view(), target));
  EXPECT_EQ(back, values_);
}

}  // namespace
}  // namespace tessera
