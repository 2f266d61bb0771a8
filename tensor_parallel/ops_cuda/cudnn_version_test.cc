// Beside a cuDNN that is too old (libcudnn_stub.c).

#include <memory>

#include "absl/status/status.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tensor_parallel/ops_cuda/cudnn_attention.h"
#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsNull;
using ::testing::Not;

TEST(CudnnVersionTest, RejectsAVersionWithWrongGradients) {
  EXPECT_THAT(
      native::CheckCudnn(),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("cuDNN 9.5.1 was loaded, attention needs 9.6.0 "
                               "or newer"),
                     HasSubstr("install a newer libcudnn.so.9"),
                     HasSubstr("LD_LIBRARY_PATH"), Not(HasSubstr("\n")))));
}

TEST(CudnnVersionTest, OurKernelTakesItsPlace) {
  Scratch scratch(HostMemory());
  EXPECT_THAT(native::CreateCudnnAttention(HostQueue(), {}, scratch),
              IsOkAndHolds(IsNull()));
}

}  // namespace
}  // namespace tessera::tensor_parallel
