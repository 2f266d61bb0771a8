#include "base/device/cuda_status.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(CudaStatusTest, SuccessIsOk) {
  TESSERA_EXPECT_OK(CudaStatus(cudaSuccess, "nothing"));
}

TEST(CudaStatusTest, NamesOperationAndRuntimeError) {
  EXPECT_THAT(CudaStatus(cudaErrorNoDevice, "count of CUDA devices"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("count of CUDA devices: cudaErrorNoDevice")));
  EXPECT_THAT(CudaStatus(cudaErrorInsufficientDriver, "x"),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(CudaStatus(cudaErrorMemoryAllocation, "x"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("out of memory")));
  EXPECT_THAT(CudaStatus(cudaErrorInvalidValue, "x"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CudaStatus(cudaErrorIllegalAddress, "x"),
              StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace tessera
