// CudaOps on a GPU.

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/device/testing/test_gpu.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/attention_problem.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/rounding.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<TestedOps> OnGpu() {
  TestedOps tested;
  TESSERA_ASSIGN_OR_RETURN(tested.device, CreateTestGpu());
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
      TESSERA_ASSERT_OK(ops().Run(op::Gemm{
          {.transpose_b = true}, left.view(), right.view(), product.view()}));
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
          ops().Run(op::Attend{block, {output.view(), log_sum_exp.view()}}));
      TESSERA_ASSERT_OK(ops().Run(
          op::RowDots{output.view(), output_gradient.view(), delta.view()}));
      TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{
          block,
          {output_gradient.view(), output.view(), log_sum_exp.view(),
           delta.view(), dq.view(), dk.view(), dv.view()}}));
      const std::vector<std::vector<std::byte>> bytes = {
          BytesOf(output, query_sums), BytesOf(log_sum_exp, row_sums),
          BytesOf(dq, query_sums), BytesOf(dk, key_sums),
          BytesOf(dv, key_sums)};
      if (i == 0) first = bytes;
      EXPECT_TRUE(bytes == first) << dtype << ", repeat " << i;
    }
  }
}

// cuDNN's attention with and without determinism.
class CudnnGpuTest : public CudaOpsGpuTest {
 protected:
  void SetUp() override {
    CudaOpsGpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const absl::Status cudnn = native::CheckCudnn();
    if (!cudnn.ok()) GTEST_SKIP() << cudnn;
    TESSERA_ASSERT_OK_AND_ASSIGN(
        fast_, native::CreateCudaOps(queue(), {.deterministic = false}));
    deterministic_on_host_ = UploadOperands(ops(), nullptr);
    fast_on_host_ = UploadOperands(*fast_, nullptr);
  }

  std::vector<Ops*> all_ops() {
    return {deterministic_on_host_.get(), fast_on_host_.get()};
  }

 private:
  std::unique_ptr<Ops> fast_;
  std::unique_ptr<Ops> deterministic_on_host_, fast_on_host_;
};

TEST_F(CudnnGpuTest, IsTheReference) {
  for (const MaskedAttentionCase& attention : kGpuAttentionCases) {
    ExpectAttentionOfBothTypes(all_ops(), attention, /*rounds_late=*/true);
  }
}

// A problem of NaNs leaves them in all of the workspace.
TEST_F(CudnnGpuTest, DoesNotDependOnWhatItsWorkspaceHolds) {
  std::mt19937_64 random(3);
  const AttentionProblem inputs(DType::kBF16, {2, 300, 300, 8, 2, 128}, random);
  const AttentionReference reference(inputs, Arithmetic::kTensorCores);
  AttentionProblem nans = inputs;
  for (TestTensor* x :
       {&nans.query, &nans.key, &nans.value, &nans.output_gradient}) {
    x->Set(std::vector<double>(x->size(),
                               std::numeric_limits<double>::quiet_NaN()));
  }
  for (Ops* const on_host : all_ops()) {
    AttentionProblem first = nans, second = inputs;
    TESSERA_ASSERT_OK(on_host->Run(op::Attend{first.Block(), first.State()}));
    TESSERA_ASSERT_OK(
        on_host->Run(op::AttendGradient{first.Block(), first.Gradients()}));
    EXPECT_TRUE(std::isnan(first.query_gradient.at(0)));
    ExpectAttentionIsReference(*on_host, second, reference);
  }
}

TEST_F(CudnnGpuTest, AddsToGradients) {
  std::mt19937_64 random(4);
  AttentionProblem p(DType::kBF16, {2, 200, 264, 4, 2, 64}, random);
  Ops& on_host = *all_ops().front();
  TESSERA_ASSERT_OK(on_host.Run(op::Attend{p.Block(), p.State()}));
  TESSERA_ASSERT_OK(on_host.Run(op::AttendGradient{p.Block(), p.Gradients()}));
  const AttentionProblem once = p;
  TESSERA_ASSERT_OK(on_host.Run(op::AttendGradient{p.Block(), p.Gradients()}));
  for (const auto& [x, y] :
       {std::pair{&once.query_gradient, &p.query_gradient},
        std::pair{&once.key_gradient, &p.key_gradient},
        std::pair{&once.value_gradient, &p.value_gradient}}) {
    std::vector<double> twice = x->values();
    for (double& value : twice) value *= 2;
    EXPECT_EQ(y->values(), twice);
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
