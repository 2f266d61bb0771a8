#include "collectives/nccl/nccl_types.h"

#include <cstring>

#include "base/dtype/dtype_traits.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclTypesTest, EveryTypeHasNcclsOfTheSameSize) {
  const auto size = [](ncclDataType_t type) -> int64_t {
    switch (type) {
      case ncclFloat64:
      case ncclInt64:
        return 8;
      case ncclFloat32:
      case ncclInt32:
        return 4;
      case ncclFloat16:
      case ncclBfloat16:
        return 2;
      default:
        return 1;
    }
  };
  for (const DType dtype : kAllDTypes) {
    EXPECT_EQ(size(NcclTypeOf(dtype)), SizeInBytes(dtype)) << dtype;
  }
  EXPECT_EQ(NcclTypeOf(DType::kBF16), ncclBfloat16);
  EXPECT_EQ(NcclTypeOf(DType::kF16), ncclFloat16);
  EXPECT_EQ(NcclTypeOf(DType::kI8), ncclInt8);
  EXPECT_EQ(NcclTypeOf(DType::kU8), ncclUint8);
}

TEST(NcclTypesTest, EveryReductionHasNccls) {
  EXPECT_EQ(NcclOpOf(ReduceOp::kSum), ncclSum);
  EXPECT_EQ(NcclOpOf(ReduceOp::kAverage), ncclAvg);
  EXPECT_EQ(NcclOpOf(ReduceOp::kProduct), ncclProd);
  EXPECT_EQ(NcclOpOf(ReduceOp::kMin), ncclMin);
  EXPECT_EQ(NcclOpOf(ReduceOp::kMax), ncclMax);
  EXPECT_EQ(NcclOpOf(ReduceOp::kScaledSum), ncclSum);
}

TEST(NcclTypesTest, AFactorIsOneElementOfItsType) {
  const auto as = []<typename T>(T) {
    T value;
    std::memcpy(&value, ScalarOf(kDTypeOf<T>, 3.0).data(), sizeof(T));
    return static_cast<double>(value);
  };
  EXPECT_EQ(as(double{}), 3.0);
  EXPECT_EQ(as(float{}), 3.0);
  EXPECT_EQ(as(F16{}), 3.0);
  EXPECT_EQ(as(BF16{}), 3.0);
  EXPECT_EQ(as(int64_t{}), 3.0);
  EXPECT_EQ(as(int32_t{}), 3.0);
  EXPECT_EQ(as(int8_t{}), 3.0);
  EXPECT_EQ(as(uint8_t{}), 3.0);
}

TEST(NcclTypesTest, ErrorsKeepTheCallAndNcclsWords) {
  EXPECT_THAT(NcclStatus(ncclSuccess, "x"), IsOk());
  EXPECT_THAT(NcclStatus(ncclInProgress, "x"), IsOk());
  EXPECT_THAT(NcclStatus(ncclInvalidUsage, "ncclSend", "twice"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("ncclSend"), HasSubstr("twice"))));
  EXPECT_THAT(NcclStatus(ncclRemoteError, "ncclSend"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ncclSend")));
  EXPECT_THAT(NcclStatus(ncclInternalError, "ncclSend"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("ncclSend")));
  EXPECT_THAT(CudaStatus(cudaSuccess, "x"), IsOk());
  EXPECT_THAT(CudaStatus(cudaErrorNoDevice, "cudaSetDevice"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cudaSetDevice")));
  EXPECT_THAT(
      CudaStatus(cudaErrorMemoryAllocation, "cudaMalloc"),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cudaMalloc")));
  EXPECT_THAT(CudaStatus(cudaErrorLaunchFailure, "k"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("k")));
}

}  // namespace
}  // namespace tessera::collectives
