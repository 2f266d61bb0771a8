// CudaStateOps on a GPU.

#include "absl/status/status.h"
#include "base/device/testing/test_gpu.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "zero3/state/cuda_state_ops.h"
#include "zero3/state/testing/state_ops_conformance.h"

namespace tessera::zero3 {
namespace {

TEST(CudaStateOpsGpuTest, HasTheBitsOfTheHost) {
  const auto device = CreateTestGpu();
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  TESSERA_ASSERT_OK(device);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto queue,
                               (*device)->CreateQueue("compute"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto ops, native::CudaStateOps(*queue));
  testing::ExpectTheBitsOfTheHost(*queue, *ops);
}

}  // namespace
}  // namespace tessera::zero3
