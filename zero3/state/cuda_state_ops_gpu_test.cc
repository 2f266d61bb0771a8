// CudaStateOps on a GPU.

#include "base/device/cuda_device.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "zero3/state/cuda_state_ops.h"
#include "zero3/state/state_ops_conformance.h"

namespace tessera::zero3 {
namespace {

TEST(CudaStateOpsGpuTest, HasTheBitsOfTheHost) {
  const auto device = CudaDevice::Create({.arena_bytes = 64 << 20});
  if (!device.ok()) GTEST_SKIP() << device.status();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto queue,
                               (*device)->CreateQueue("compute"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto ops, native::CudaStateOps(*queue));
  testing::ExpectTheBitsOfTheHost(*queue, *ops);
}

}  // namespace
}  // namespace tessera::zero3
