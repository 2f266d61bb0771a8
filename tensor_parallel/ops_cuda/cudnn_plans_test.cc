// Which attention cuDNN takes on an H200, and the memory that it needs, without
// a GPU: plans are compiled for a device that is described by its properties.

#include "tensor_parallel/ops_cuda/cudnn_plans.h"

#include <cstdint>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cuda/cudnn_graph.h"
#include "tensor_parallel/ops_cuda/library_workspace.h"

namespace tessera::tensor_parallel {

void PrintTo(const CudnnAttentionShape& s, std::ostream* os) {
  *os << s.sequences << "x" << s.queries << "x" << s.keys << ", " << s.heads
      << "/" << s.kv_heads << " heads of " << s.head_size
      << (s.causal ? ", causal" : ", full");
}

namespace {

using ::testing::HasSubstr;

constexpr char kH200[] = R"({
  "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000,
  "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0,
  "supportCoopLaunch": 1, "multiProcessorCount": 132, "warpSize": 32,
  "maxGridSize": [2147483647, 65535, 65535],
  "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024,
  "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536,
  "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "totalGlobalMem": 150110011392,
  "l2CacheSize": 62914560, "smClockRateKHz": 1980000,
  "memClockRateKHz": 3201000
})";

CudnnAttentionShape Shape(int64_t sequences, int64_t queries, int64_t keys,
                          int64_t heads, int64_t kv_heads, int64_t head_size,
                          bool causal) {
  return {.sequences = sequences,
          .queries = queries,
          .keys = keys,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_size = head_size,
          .causal = causal};
}

class CudnnPlansTest : public testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(h200_, CudnnPropertiesFromJson(kH200));
  }

  absl::StatusOr<CudnnPlan> Forward(const CudnnAttentionShape& s) {
    const CudnnStrides key = PackedStrides(s.keys, s.kv_heads, s.head_size);
    return BuildForwardPlan(s, PackedStrides(s.queries, s.heads, s.head_size),
                            key, key, h200_);
  }
  absl::StatusOr<CudnnPlan> Backward(const CudnnAttentionShape& s,
                                     bool deterministic) {
    const CudnnStrides query = PackedStrides(s.queries, s.heads, s.head_size);
    const CudnnStrides key = PackedStrides(s.keys, s.kv_heads, s.head_size);
    return BuildBackwardPlan(s, query, key, key, query, deterministic, h200_);
  }

  CudnnDescriptor h200_;
};

TEST_F(CudnnPlansTest, ForwardTakesModelShapesWithAlmostNoWorkspace) {
  for (const bool causal : {false, true}) {
    for (const CudnnAttentionShape& shape :
         {Shape(2, 4096, 4096, 32, 8, 128, causal),
          Shape(4, 2048, 2048, 32, 8, 64, causal),
          Shape(1, 333, 333, 6, 2, 64, causal),
          Shape(1, 77, 133, 4, 2, 40, causal),
          Shape(1, 128, 128, 4, 4, 256, causal),
          Shape(1, 1, 1, 2, 1, 8, causal)}) {
      SCOPED_TRACE(testing::PrintToString(shape));
      TESSERA_ASSERT_OK_AND_ASSIGN(const CudnnPlan plan, Forward(shape));
      EXPECT_LE(plan.workspace_bytes(), 1024);
    }
  }
}

// Models of 8B and of 1.2B parameters, and lengths that fill no tiles.
TEST_F(CudnnPlansTest, WorkspaceOfTheBackwardIsWithinItsBound) {
  for (const CudnnAttentionShape& shape :
       {Shape(2, 4096, 4096, 32, 8, 128, true),
        Shape(2, 4096, 4096, 32, 8, 128, false),
        Shape(1, 8192, 8192, 32, 8, 128, true),
        Shape(4, 4096, 4096, 32, 8, 64, true),
        Shape(2, 4096, 4096, 32, 32, 128, true),
        Shape(1, 333, 333, 6, 2, 64, true), Shape(1, 1, 4096, 8, 1, 128, false),
        Shape(2, 500, 1011, 8, 8, 128, false),
        Shape(2, 512, 1024, 8, 8, 128, true)}) {
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(testing::PrintToString(shape));
      TESSERA_ASSERT_OK_AND_ASSIGN(const CudnnPlan plan,
                                   Backward(shape, deterministic));
      const int64_t bound = CudnnBackwardWorkspaceBytes(shape, deterministic);
      EXPECT_LE(plan.workspace_bytes(), bound);
      EXPECT_GE(plan.workspace_bytes(), bound - 1024);
    }
  }
}

// Of fused products the query, keys and values are slices.
TEST_F(CudnnPlansTest, TakesSlicesOfFusedRows) {
  const CudnnAttentionShape shape = Shape(2, 512, 512, 8, 2, 64, true);
  const int64_t row = (8 + 2 + 2) * 64;
  const CudnnStrides slice = {
      .sequence = 512 * row, .position = row, .head = 64};
  const CudnnStrides packed = PackedStrides(512, 8, 64);
  TESSERA_EXPECT_OK(BuildForwardPlan(shape, slice, slice, slice, h200_));
  for (const bool deterministic : {false, true}) {
    TESSERA_EXPECT_OK(BuildBackwardPlan(shape, slice, slice, slice, packed,
                                        deterministic, h200_));
  }
}

TEST_F(CudnnPlansTest, RefusesWhatCudnnHasNoEngineFor) {
  EXPECT_THAT(Forward(Shape(1, 8, 8, 2, 2, 12, true)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("a head size of 12: it should be a multiple "
                                 "of 8 up to 256")));
  EXPECT_THAT(Backward(Shape(1, 8, 8, 2, 2, 256, true), true),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("a head size of 256: it should be a multiple "
                                 "of 8 up to 128")));
  EXPECT_THAT(Forward(Shape(1, 9, 8, 2, 2, 64, true)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("queries that see no key")));
  EXPECT_THAT(Forward(Shape(1, 8, 8, 3, 2, 64, true)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a multiple of key heads")));
  EXPECT_THAT(Forward(Shape(0, 8, 8, 2, 2, 64, true)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("should be positive")));
}

TEST(CudnnGraphTest, MalformedPropertiesAreRefused) {
  EXPECT_FALSE(CudnnPropertiesFromJson("{\"deviceVer\": 900}").ok());
}

TEST(CudnnGraphTest, ReportsTheFirstErrorOfADescription) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const CudnnDescriptor h200,
                               CudnnPropertiesFromJson(kH200));
  CudnnGraphBuilder graph;
  const CudnnTensor x = graph.Virtual(CUDNN_DATA_FLOAT, {1, -1, 2, 2});
  graph.Pointwise(CUDNN_POINTWISE_EXP, x, x);
  EXPECT_THAT(std::move(graph).Build(h200),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a tensor of a cuDNN graph")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
