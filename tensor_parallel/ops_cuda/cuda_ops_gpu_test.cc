// CudaOps on a GPU.

#include <cstddef>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/cuda_device.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/ops_conformance.h"
#include "tensor_parallel/ops/test_tensor.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<TestedOps> OnGpu() {
  TestedOps tested;
  absl::StatusOr<std::shared_ptr<CudaDevice>> device =
      CudaDevice::Create({.arena_bytes = size_t{1} << 30});
  if (absl::IsUnimplemented(device.status())) {
    return absl::UnavailableError(device.status().message());
  }
  TESSERA_RETURN_IF_ERROR(device.status());
  tested.device = *device;
  TESSERA_ASSIGN_OR_RETURN(tested.queue, tested.device->CreateQueue("compute"));
  TESSERA_ASSIGN_OR_RETURN(tested.ops, native::CreateCudaOps(*tested.queue));
  return tested;
}

INSTANTIATE_TEST_SUITE_P(Gpu, OpsConformanceTest,
                         ::testing::Values(OpsUnderTest{"Cuda", OnGpu}),
                         NameOfOpsUnderTest);

class CudaOpsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<TestedOps> tested = OnGpu();
    if (absl::IsUnavailable(tested.status())) GTEST_SKIP() << tested.status();
    TESSERA_ASSERT_OK(tested);
    tested_ = *std::move(tested);
  }

  Ops& ops() { return *tested_.ops; }
  Queue& queue() { return *tested_.queue; }

  // The bytes of `x` on the device.
  static std::vector<std::byte> BytesOf(const DeviceCopy& copy, TestTensor x) {
    copy.ReadTo(x);
    return x.bytes();
  }

  TestedOps tested_;
};

constexpr int kRepeats = 10;

TEST_F(CudaOpsGpuTest, RepeatedGemmsGiveEqualBits) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    TestTensor a(dtype, {1000, 2056}), b(dtype, {264, 2056});
    TestTensor c(dtype, {1000, 264});
    const DeviceCopy left(queue(), a.Randomise(random));
    const DeviceCopy right(queue(), b.Randomise(random));
    std::vector<std::byte> first;
    for (int i = 0; i < kRepeats; ++i) {
      const DeviceCopy product(queue(), c);
      TESSERA_ASSERT_OK(ops().Gemm({.transpose_b = true}, left.view(),
                                   right.view(), product.view()));
      const std::vector<std::byte> bytes = BytesOf(product, c);
      if (i == 0) first = bytes;
      EXPECT_TRUE(bytes == first) << dtype << ", repeat " << i;
    }
  }
}

// cuDNN computes bf16, kernels of our own the other types.
TEST_F(CudaOpsGpuTest, RepeatedAttentionGivesEqualBits) {
  const Dims queries = {2, 512, 8, 64}, keys = {2, 512, 2, 64};
  const Dims rows = {2, 512, 8};
  std::mt19937_64 random(2);
  for (const DType dtype : kComputedTypes) {
    const DType sums = StatisticsFor(dtype);
    TestTensor q(dtype, queries), k(dtype, keys), v(dtype, keys);
    TestTensor gradient(dtype, queries);
    const TestTensor query_sums(sums, queries), key_sums(sums, keys);
    TestTensor row_sums(sums, rows);
    const DeviceCopy query(queue(), q.Randomise(random));
    const DeviceCopy key(queue(), k.Randomise(random));
    const DeviceCopy value(queue(), v.Randomise(random));
    const DeviceCopy output_gradient(queue(), gradient.Randomise(random));
    const AttentionBlock block = {query.view(), key.view(), value.view(),
                                  BlockKind::kCausal, 0.125};
    row_sums.Set(std::vector<double>(row_sums.size(),
                                     -std::numeric_limits<double>::infinity()));
    std::vector<std::vector<std::byte>> first;
    for (int i = 0; i < kRepeats; ++i) {
      const DeviceCopy output(queue(), query_sums);
      const DeviceCopy log_sum_exp(queue(), row_sums), delta(queue(), row_sums);
      const DeviceCopy dq(queue(), query_sums), dk(queue(), key_sums),
          dv(queue(), key_sums);
      TESSERA_ASSERT_OK(
          ops().Attend(block, {output.view(), log_sum_exp.view()}));
      TESSERA_ASSERT_OK(
          ops().RowDots(output.view(), output_gradient.view(), delta.view()));
      TESSERA_ASSERT_OK(ops().AttendGradient(
          block, {output_gradient.view(), output.view(), log_sum_exp.view(),
                  delta.view(), dq.view(), dk.view(), dv.view()}));
      const std::vector<std::vector<std::byte>> bytes = {
          BytesOf(output, query_sums), BytesOf(log_sum_exp, row_sums),
          BytesOf(dq, query_sums), BytesOf(dk, key_sums),
          BytesOf(dv, key_sums)};
      if (i == 0) first = bytes;
      EXPECT_TRUE(bytes == first) << dtype << ", repeat " << i;
    }
  }
}

// Needs no GPU, but a build with the toolkit.
TEST(CreateCudaOpsTest, RefusesQueuesWithoutAStream) {
  const absl::StatusOr<std::unique_ptr<Ops>> ops =
      native::CreateCudaOps(HostQueue());
  if (absl::IsUnimplemented(ops.status())) GTEST_SKIP() << ops.status();
  EXPECT_THAT(ops, StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("has no CUDA stream")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
