// The kernels around library calls, and the loop that stands in for cuBLASLt,
// emulated.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/device/host_device.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cudnn_attention.h"
#include "tensor_parallel/ops_cuda/cudnn_attention_kernels.h"
#include "tensor_parallel/ops_cuda/gemm.h"
#include "tensor_parallel/ops_cuda/library_workspace.h"
#include "tensor_parallel/ops_cuda/matrix_scale.h"
#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel::emulated {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ScaleMatrixTest, KeepsGapsAndOverwritesNaNByZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> c = {1, 2, -1, 3, 4, -1};
  LaunchScaleMatrix(nullptr, 0.5, DType::kF32, 2, 2, 3, c.data());
  EXPECT_THAT(c, ElementsAre(0.5, 1, -1, 1.5, 2, -1));
  c = {nan, nan, -1, nan, nan, -1};
  LaunchScaleMatrix(nullptr, 0, DType::kF32, 2, 2, 3, c.data());
  EXPECT_THAT(c, ElementsAre(0, 0, -1, 0, 0, -1));
}

TEST(ReferenceGemmTest, MultipliesSlicesAndAddsToTheResult) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto gemm, CudaGemm::Create(HostQueue()));
  std::vector<float> a = {1, 2, -9, 3, 4, -9}, b = {5, 6, 7, 8},
                     c = {1, 1, 1, 1};
  const TensorView a_view =
      *TensorView::Create(std::as_writable_bytes(std::span(a)), DType::kF32,
                          *Layout::Strided({{2, 2}}, {{3, 1}}));
  const TensorView b_view = *TensorView::Of(std::span(b), {{2, 2}});
  const TensorView c_view = *TensorView::Of(std::span(c), {{2, 2}});
  TESSERA_ASSERT_OK(gemm->Run(nullptr, {.transpose_b = true, .beta = 10},
                              a_view, b_view, c_view));
  EXPECT_THAT(c, ElementsAre(27, 33, 49, 63));
}

TEST(ReferenceGemmTest, RefusesOtherTypes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto gemm, CudaGemm::Create(HostQueue()));
  std::vector<int32_t> x = {1};
  const TensorView view = *TensorView::Of(std::span(x), {{1, 1}});
  EXPECT_THAT(
      gemm->Run(nullptr, {}, view, view, view),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Gemm of i32")));
}

TEST(CudnnAttentionTest, IsNotThereEmulated) {
  Scratch scratch(HostMemory());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto cudnn,
                               CreateCudnnAttention(HostQueue(), {}, scratch));
  EXPECT_EQ(cudnn, nullptr);
}

// A micro-batch of a model with 8 billion parameters.
constexpr CudnnAttentionShape kLargeShape = {.sequences = 2,
                                             .queries = 4096,
                                             .keys = 4096,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .head_size = 128,
                                             .causal = true};
constexpr CudnnAttentionShape kOddShape = {.sequences = 1,
                                           .queries = 77,
                                           .keys = 133,
                                           .heads = 3,
                                           .kv_heads = 3,
                                           .head_size = 40};

TEST(LibraryWorkspaceTest, PartsOfTheScratchMemoryFollowEachOther) {
  for (const CudnnAttentionShape& s : {kLargeShape, kOddShape}) {
    const int64_t queries = s.query_rows() * s.head_size;
    const int64_t keys = s.key_rows() * s.head_size;
    const CudnnForwardScratch forward(s, 1000);
    EXPECT_EQ(forward.output, 0);
    EXPECT_GE(forward.log_sum_exp, forward.output + 2 * queries);
    EXPECT_GE(forward.workspace, forward.log_sum_exp + 4 * s.query_rows());
    EXPECT_GE(forward.bytes, forward.workspace + 1000);
    for (const bool deterministic : {false, true}) {
      const CudnnBackwardScratch parts(s, deterministic, 1000);
      const int64_t sum_bytes = deterministic ? 0 : 4 * queries;
      EXPECT_EQ(parts.output, 0);
      EXPECT_GE(parts.log_sum_exp, parts.output + 2 * queries);
      EXPECT_GE(parts.dots, parts.log_sum_exp + 4 * s.query_rows());
      EXPECT_GE(parts.query_gradient, parts.dots + 4 * s.query_rows());
      EXPECT_GE(parts.key_gradient, parts.query_gradient + 2 * queries);
      EXPECT_GE(parts.value_gradient, parts.key_gradient + 2 * keys);
      EXPECT_GE(parts.query_sum, parts.value_gradient + 2 * keys);
      EXPECT_GE(parts.workspace, parts.query_sum + sum_bytes);
      EXPECT_GE(parts.bytes, parts.workspace + 1000);
      for (const int64_t offset :
           {parts.log_sum_exp, parts.dots, parts.query_gradient,
            parts.key_gradient, parts.value_gradient, parts.query_sum,
            parts.workspace}) {
        EXPECT_EQ(offset % Scratch::kAlignment, 0);
      }
    }
  }
}

TEST(LibraryWorkspaceTest, BoundsTheScratchMemoryAfterAStep) {
  for (const bool deterministic : {false, true}) {
    // Other operations have taken some before.
    for (const int64_t before : {0, 1000, 1 << 20}) {
      Scratch scratch(HostMemory());
      const int64_t workspace =
          CudnnBackwardWorkspaceBytes(kOddShape, deterministic);
      const CudnnBackwardScratch backward(kOddShape, deterministic, workspace);
      TESSERA_ASSERT_OK(scratch.Reserve(std::min(before, backward.bytes)));
      TESSERA_ASSERT_OK(
          scratch.Reserve(CudnnForwardScratch(kOddShape, 256).bytes));
      TESSERA_ASSERT_OK(scratch.Reserve(backward.bytes));
      EXPECT_LE(kCublasLtWorkspaceBytes + scratch.size(),
                LibraryWorkspaceBytes(kOddShape, deterministic));
    }
  }
}

TEST(LibraryWorkspaceTest, IsThatOfCublasLtWithoutAttention) {
  EXPECT_EQ(LibraryWorkspaceBytes({}, true), kCublasLtWorkspaceBytes);
}

TEST(LibraryWorkspaceTest, IsKnownForALargeModel) {
  constexpr int64_t kMegabyte = 1000 * 1000;
  EXPECT_EQ(LibraryWorkspaceBytes(kLargeShape, false) / kMegabyte, 522);
  EXPECT_EQ(LibraryWorkspaceBytes(kLargeShape, true) / kMegabyte, 2535);
}

// 2 sequences, 3 positions, 2 heads of 40 elements, in wider rows.
class PackedRowsTest : public testing::Test {
 protected:
  static constexpr HeadRowSizes kSizes = {2, 3, 2, 40};
  static constexpr int64_t kHead = 48, kPosition = 2 * kHead,
                           kSequence = 3 * kPosition;
  static constexpr int64_t kRows = 12, kElements = kRows * 40;

  template <typename T>
  static HeadRows<T> Rows(T* data) {
    return {data, kSequence, kPosition, kHead};
  }
  static HeadRows<float> Logs(float* data) { return {data, 6, 2, 1}; }
  // Of sequence s, position p and head h in [sequences, heads, positions].
  static int64_t LogAt(int64_t row) {
    return (row / 6 * 2 + row % 2) * 3 + row / 2 % 3;
  }
};

TEST_F(PackedRowsTest, MergesBlocksByTheirLogSumExp) {
  std::vector<float> state(2 * kSequence, 1), log(kRows, std::log(3.0f));
  std::vector<BF16> block(kElements, ConvertValue<BF16>(5.0f));
  std::vector<float> block_log(kRows, 0);
  log[4] = -kInfinity;  // Row 4 has seen nothing,
  for (int i = 0; i < 40; ++i) state[4 / 2 * kPosition + i] = 0;
  block_log[LogAt(7)] = -kInfinity;  // and row 7 sees nothing in the block.
  LaunchMergeAttention(nullptr, kSizes, block.data(), block_log.data(),
                       Rows(state.data()), Logs(log.data()));
  for (int64_t row = 0; row < kRows; ++row) {
    const float* const x = &state[row / 2 * kPosition + row % 2 * kHead];
    const float expected = row == 4 ? 5 : row == 7 ? 1 : 2;
    for (int i = 0; i < 40; ++i) EXPECT_FLOAT_EQ(x[i], expected) << row;
    EXPECT_EQ(x[40], 1) << "the gap was written";
    EXPECT_FLOAT_EQ(log[row], row == 4   ? 0
                              : row == 7 ? std::log(3.0f)
                                         : std::log(4.0f));
  }
}

TEST_F(PackedRowsTest, PacksAndAddsRows) {
  std::vector<float> x(2 * kSequence);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 100);
  const std::vector<float> before = x;
  std::vector<BF16> packed(kElements);
  LaunchPackRows(nullptr, kSizes, Rows<const float>(x.data()), packed.data());
  LaunchAddPackedRows(nullptr, kSizes, packed.data(), Rows(x.data()));
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i], i % kHead < 40 ? 2 * before[i] : before[i]);
  }
}

TEST_F(PackedRowsTest, QueriesThatSawNothingGetZeroProbabilities) {
  std::vector<float> log(kRows), packed(kRows);
  for (int64_t row = 0; row < kRows; ++row) log[row] = row;
  log[5] = -kInfinity;
  const HeadRows<const float> rows = {log.data(), 6, 2, 1};
  LaunchPackLogSumExp(nullptr, kSizes, rows, packed.data());
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(packed[LogAt(row)], row == 5 ? kInfinity : row);
  }
}

TEST_F(PackedRowsTest, UnpackingIsTheInverse) {
  std::vector<float> log(kRows), packed(kRows), unpacked(kRows);
  for (int64_t row = 0; row < kRows; ++row) log[row] = row;
  LaunchPackLogSumExp(nullptr, kSizes, {log.data(), 6, 2, 1}, packed.data());
  LaunchUnpackLogSumExp(nullptr, kSizes, packed.data(), Logs(unpacked.data()));
  EXPECT_EQ(unpacked, log);
}

}  // namespace
}  // namespace tessera::tensor_parallel::emulated
