// The conformance suite of Ops, which each implementation
// instantiates:
//
//   INSTANTIATE_TEST_SUITE_P(
//       Cpu, OpsConformanceTest,
//       ::testing::Values(OpsUnderTest{"Host", [] { ... }}),
//       NameOfOpsUnderTest);
//
// The tests are in *_conformance.cc and compare with formulas in f64. Their
// tensors are in host memory; if the device has other memory, each operation's
// operands are copied to it and the results back.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_TESTING_OPS_CONFORMANCE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_TESTING_OPS_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/rounding.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {

// Members are destroyed from the last to the first.
struct TestedOps {
  std::shared_ptr<Device> device;  // Null for the host.
  std::unique_ptr<Queue> queue;    // Null for HostQueue().
  std::unique_ptr<Ops> ops;
  // Ops in host memory that must give the same bits; null to compare only with
  // the formulas.
  std::unique_ptr<Ops> same_bits = nullptr;
};

struct OpsUnderTest {
  std::string name;
  // Unavailable if this machine has no such device: tests are skipped.
  std::function<absl::StatusOr<TestedOps>()> create;
};
inline std::ostream& operator<<(std::ostream& os, const OpsUnderTest& ops) {
  return os << ops.name;
}
inline std::string NameOfOpsUnderTest(
    const ::testing::TestParamInfo<OpsUnderTest>& info) {
  return info.param.name;
}

// Ops on host memory that use `ops`, whose device has other memory: each
// operation copies its operands there and its results back, and waits. Expects
// the bits of `same_bits` unless that is null. Both must outlive the result.
std::unique_ptr<Ops> UploadOperands(Ops& ops, Ops* same_bits);

// A copy of a tensor in the memory of a device.
class DeviceCopy {
 public:
  // Waits for the upload. `queue` must outlive this object.
  DeviceCopy(Queue& queue, const TestTensor& tensor);

  TensorView view() const { return view_; }
  // Waits for the work of the queue and copies the elements to `tensor`.
  void ReadTo(TestTensor& tensor) const;

 private:
  Queue& queue_;
  Buffer memory_;
  TensorView view_;
};

class OpsConformanceTest : public ::testing::TestWithParam<OpsUnderTest> {
 protected:
  void SetUp() override;

  // On host memory.
  Ops& ops() { return *ops_; }
  // On memory of the device.
  Ops& device_ops() { return *tested_.ops; }
  Queue& queue() { return tested_.ops->queue(); }
  Arithmetic arithmetic() { return ArithmeticOf(queue()); }

 private:
  TestedOps tested_;
  std::unique_ptr<Ops> uploading_;
  Ops* ops_ = nullptr;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_TESTING_OPS_CONFORMANCE_H_
