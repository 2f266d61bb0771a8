#include "base/device/operation_queue.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y += factor * x.
struct Axpy {
  static constexpr std::string_view kName = "Axpy";
  double factor = 1;
  ConstTensorView x;
  TensorView y;

  absl::Status Check(OperandChecker& check) const {
    if (absl::Status status = check.Leads("x", x); !status.ok()) return status;
    return check.Writes("y", y, x.shape()).status();
  }
  bool IsEmpty() const { return factor == 0; }
  auto operands() { return std::tie(x, y); }
};

// y = the values, which an enqueued operation keeps.
struct Set {
  static constexpr std::string_view kName = "Set";
  const std::vector<float>* values = nullptr;
  TensorView y;
  std::vector<float> kept = {};

  absl::Status Check(OperandChecker& check) const {
    if (absl::Status status = check.Leads("y", y); !status.ok()) return status;
    return check.Writes("y", y, y.shape()).status();
  }
  void Keep() { kept = *values; }
  void MoveTo(const DeviceAddresses& at) {
    y = at(y);
    values = &kept;
  }
};

// An operation that the backend does not support.
struct Missing {
  static constexpr std::string_view kName = "Missing";
  TensorView y;

  absl::Status Check(OperandChecker& check) const { return check.status(); }
  auto operands() { return std::tie(y); }
};

using TestOperations = OperationList<Axpy, Set, Missing>;

struct Backend {
  int runs = 0;
};

absl::Status Run(Backend& backend, const Axpy& call) {
  ++backend.runs;
  const auto* const x = reinterpret_cast<const float*>(call.x.data());
  auto* const y = reinterpret_cast<float*>(call.y.data());
  for (int64_t i = 0; i < call.x.element_count(); ++i) {
    y[i] += static_cast<float>(call.factor) * x[i];
  }
  return absl::OkStatus();
}

absl::Status Run(Backend& backend, const Set& call) {
  ++backend.runs;
  std::memcpy(call.y.data(), call.values->data(),
              call.values->size() * sizeof(float));
  return absl::OkStatus();
}

using Table = KernelTable<Backend, TestOperations>;

const Table& Kernels() {
  static const Table table = [] {
    Table result;
    result.Add<Axpy, Set>(
        [](Backend& backend, const auto& call) { return Run(backend, call); });
    result.AddCheck<Axpy>(
        [](const Backend&, const Axpy& call, OperandChecker& check) {
          check.Requires(call.factor < 100, "the factor is at most 100.");
        });
    return result;
  }();
  return table;
}

class OperationQueueTest : public ::testing::Test {
 protected:
  OperationQueueTest()
      : x_(*Tensor::Create(DType::kF32, {{3}})),
        y_(*Tensor::Create(DType::kF32, {{3}})) {
    Fill(x_, {1, 2, 3});
    Fill(y_, {10, 20, 30});
  }

  static void Fill(Tensor& tensor, const std::vector<float>& values) {
    std::memcpy(tensor.view().data(), values.data(),
                values.size() * sizeof(float));
  }
  static std::vector<float> ValuesOf(const Tensor& tensor) {
    std::vector<float> values(3);
    std::memcpy(values.data(), tensor.view().data(), 3 * sizeof(float));
    return values;
  }

  std::shared_ptr<Backend> backend_ = std::make_shared<Backend>();
  OperationQueue<TestOperations> ops_{HostQueue(), Kernels(), backend_};
  Tensor x_, y_;
};

TEST_F(OperationQueueTest, RunsAtOnceOnAnImmediateQueue) {
  TESSERA_ASSERT_OK(ops_.Run(Axpy{2, x_.view(), y_.view()}));
  EXPECT_THAT(ValuesOf(y_), ElementsAre(12, 24, 36));
  const std::vector<float> values = {7, 8, 9};
  TESSERA_ASSERT_OK(ops_.Run(Set{&values, y_.view()}));
  EXPECT_THAT(ValuesOf(y_), ElementsAre(7, 8, 9));
}

TEST_F(OperationQueueTest, ReturnsErrorsOfChecksWithoutRunning) {
  Tensor longer = *Tensor::Create(DType::kF32, {{4}});
  EXPECT_THAT(ops_.Run(Axpy{2, x_.view(), longer.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("Axpy"), HasSubstr("\"y\""))));
  EXPECT_THAT(ops_.Run(Axpy{100, x_.view(), y_.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the factor is at most 100")));
  EXPECT_THAT(ops_.Run(Missing{y_.view()}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("does not have this operation")));
  EXPECT_EQ(backend_->runs, 0);
}

TEST_F(OperationQueueTest, SkipsEmptyOperations) {
  TESSERA_ASSERT_OK(ops_.Run(Axpy{0, x_.view(), y_.view()}));
  EXPECT_EQ(backend_->runs, 0);
}

TEST_F(OperationQueueTest, ReportsTimesToTheObserver) {
  static int64_t now;
  now = 0;
  std::vector<std::string> seen;
  ops_.Observe([] { return ++now; },
               [&](std::string_view name, int64_t begin, int64_t end) {
                 EXPECT_EQ(end, begin + 1);
                 seen.emplace_back(name);
               });
  TESSERA_ASSERT_OK(ops_.Run(Axpy{1, x_.view(), y_.view()}));
  ops_.Observe(nullptr, nullptr);
  TESSERA_ASSERT_OK(ops_.Run(Axpy{1, x_.view(), y_.view()}));
  EXPECT_THAT(seen, ElementsAre("Axpy"));
}

TEST_F(OperationQueueTest, DryRunOnlyCounts) {
  OperationQueue<TestOperations> dry(HostQueue());
  EXPECT_FALSE(dry.computes());
  EXPECT_TRUE(ops_.computes());
  TESSERA_ASSERT_OK(dry.Run(Axpy{2, x_.view(), y_.view()}));
  TESSERA_ASSERT_OK(dry.Run(Missing{y_.view()}));
  EXPECT_EQ(dry.calls(), 2);
  EXPECT_THAT(ValuesOf(y_), ElementsAre(10, 20, 30));
}

TEST(EnqueuedOperationTest, OutlivesItsArgumentsAndTheQueueObject) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto device,
                               EmulatedDevice::Create({.seed = 1}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto queue, device->CreateQueue("ops"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Tensor y, Tensor::Create(DType::kF32, {{2}}, device->memory()));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Tensor host,
      Tensor::Create(DType::kF32, {{2}}, device->staging_memory()));
  {
    OperationQueue<TestOperations> ops(*queue, Kernels(),
                                       std::make_shared<Backend>());
    const std::vector<float> values = {5, 6};
    TESSERA_ASSERT_OK(ops.Run(Set{&values, y.view()}));
    TESSERA_ASSERT_OK(ops.Run(Axpy{1, y.view(), y.view()}));
  }
  TESSERA_ASSERT_OK(queue->Copy({y.view().data(), 8}, {host.view().data(), 8}));
  TESSERA_ASSERT_OK(queue->Synchronize());
  float result[2];
  std::memcpy(result, host.view().data(), sizeof result);
  EXPECT_THAT(result, ElementsAre(10, 12));
}

}  // namespace
}  // namespace tessera
