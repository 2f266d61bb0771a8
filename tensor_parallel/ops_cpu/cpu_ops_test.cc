#include "tensor_parallel/ops_cpu/cpu_ops.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/emulated_device.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// The sum of some operations.
double Result(Ops& ops) {
  std::mt19937_64 random(2);
  TestTensor x(DType::kF64, {6, 2, 4});
  TestTensor product(DType::kF64, {6, 6}), total(DType::kF64, {1});
  x.Randomise(random);
  const TestTensor table =
      RotaryTableOf(RotaryFrequencies{.base = 100}.Of(4, 6),
                    std::vector<int64_t>{0, 1, 2, 7, 8, 9}, DType::kF64);
  absl::Status status = ops.Run(op::Rotate{false, table.view(), x.view()});
  const TensorView rows = *x.view().Reshape({{6, 8}});
  status.Update(
      ops.Run(op::Gemm{{.transpose_b = true}, rows, rows, product.view()}));
  status.Update(ops.Run(op::Glu{GluKind::kSwiGlu, product.view(),
                                product.view(), product.view()}));
  status.Update(ops.Run(op::Sum{1, product.view(), total.view()}));
  TESSERA_EXPECT_OK(status);
  return total.at(0);
}

TEST(CpuOps, RanksAsThreadsOfOneProcessGiveWhatOneAloneGives) {
  CpuOps alone({.threads = 1});
  const double expected = Result(alone);
  EXPECT_TRUE(std::isfinite(expected));
  std::vector<double> results(4, 0);
  std::vector<std::thread> ranks;
  for (double& result : results) {
    ranks.emplace_back([&result] {
      CpuOps ops({.threads = 1});
      for (int i = 0; i < 50; ++i) result = Result(ops);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(results, Each(expected));
}

TEST(CpuOps, MayShareAPool) {
  const auto pool = std::make_shared<ThreadPool>(3);
  CpuOps alone({.threads = 1}), one({.pool = pool}), other({.pool = pool});
  const double expected = Result(alone);
  EXPECT_EQ(pool.use_count(), 3);
  std::thread rank([&] { EXPECT_EQ(Result(one), expected); });
  EXPECT_EQ(Result(other), expected);
  rank.join();
}

class CpuOpsOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(device_, EmulatedDevice::Create());
    TESSERA_ASSERT_OK_AND_ASSIGN(queue_, device_->CreateQueue("compute"));
  }
  Tensor OnDevice(DType dtype, std::vector<int64_t> shape) {
    return *Tensor::Create(dtype, shape, device_->memory());
  }

  static std::span<std::byte> BytesOf(Tensor& x) {
    return {x.view().data(), static_cast<size_t>(x.view().size_in_bytes())};
  }

  std::shared_ptr<EmulatedDevice> device_;
  std::unique_ptr<Queue> queue_;
};

TEST_F(CpuOpsOnDevice, EnqueuesNothingThatItRefuses) {
  CpuOps ops({.threads = 1}, *queue_);
  EXPECT_EQ(&ops.queue(), queue_.get());
  Tensor x = OnDevice(DType::kF32, {2, 3}), y = OnDevice(DType::kF32, {3, 2});
  EXPECT_THAT(ops.Run(op::Add{x.view(), y.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("Add: \"y\" has shape [3,2]")));
  EXPECT_THAT(ops.Run(op::Gemm{{}, x.view(), x.view(), y.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(device_->counts().operations, 0);
  TESSERA_EXPECT_OK(ops.Run(op::Fill{1, x.view()}));
  EXPECT_EQ(device_->counts().operations, 1);
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

TEST_F(CpuOpsOnDevice, RefusesMemoryOfAnotherKind) {
  CpuOps ops({.threads = 1}, *queue_);
  CpuOps host({.threads = 1});
  Tensor x = OnDevice(DType::kF32, {2, 3});
  TestTensor y(DType::kF32, {2, 3});
  for (const auto& status : {ops.Run(op::Add{x.view(), y.view()}),
                             ops.Run(op::Copy{x.view(), y.view()})}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("\"y\" lies in host memory")));
  }
  for (const auto& status : {host.Run(op::Add{x.view(), y.view()}),
                             host.Run(op::Copy{x.view(), y.view()})}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("\"x\" lies in device memory")));
  }
}

TEST_F(CpuOpsOnDevice, FindsAMissingWaitAndItsPlace) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto other, device_->CreateQueue("other"));
  CpuOps first({.threads = 1}, *queue_), second({.threads = 1}, *other);
  Tensor x = OnDevice(DType::kF32, {2, 3}), y = OnDevice(DType::kF32, {2, 3});
  const SourcePlace place = SourcePlace::current();
  first.SetPlace(place);
  TESSERA_ASSERT_OK(first.Run(op::Fill{1, x.view()}));
  TESSERA_ASSERT_OK(second.Run(op::Fill{1, y.view()}));
  EXPECT_THAT(
      second.Run(op::Add{x.view(), y.view()}),
      StatusIs(
          absl::StatusCode::kInternal,
          AllOf(HasSubstr("Fill"), HasSubstr("Add"),
                HasSubstr(absl::StrCat("cpu_ops_test.cc:", place.line())))));
}

TEST_F(CpuOpsOnDevice, WorkOutlivesTheOps) {
  Tensor x = OnDevice(DType::kF64, {2, 1, 4});
  Tensor table = OnDevice(DType::kF64, {2, 4});
  {
    CpuOps ops({.threads = 1}, *queue_);
    TESSERA_ASSERT_OK(ops.Run(op::Fill{1, x.view()}));
    TESSERA_ASSERT_OK(queue_->Fill(std::byte{0}, BytesOf(table)));
    TESSERA_ASSERT_OK(ops.Run(op::Rotate{false, table.view(), x.view()}));
  }
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

TEST_F(CpuOpsOnDevice, ObserverSeesOperationsAndKeepsThePlace) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto other, device_->CreateQueue("other"));
  CpuOps ops({.threads = 1}, *queue_);
  int calls = 0;
  ops.Observe([] { return int64_t{0}; },
              [&calls](std::string_view name, int64_t, int64_t) {
                EXPECT_EQ(KindOf(name), OperationKind::kOther);
                EXPECT_EQ(name, "Fill");
                ++calls;
              });
  Tensor x = OnDevice(DType::kF32, {2, 3});
  const SourcePlace place = SourcePlace::current();
  ops.SetPlace(place);
  TESSERA_ASSERT_OK(ops.Run(op::Fill{1, x.view()}));
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(
      other->Fill(std::byte{0}, BytesOf(x)),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr(absl::StrCat("cpu_ops_test.cc:", place.line()))));
}

}  // namespace
}  // namespace tessera::tensor_parallel
