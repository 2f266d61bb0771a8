// Which attention cuDNN takes on an H100 and an H200, and the memory that it
// needs, without a GPU: plans are compiled for a device that is described by
// its properties.

#include "tensor_parallel/ops_cuda/cudnn_plans.h"

#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/attention_problem.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
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

// The properties of a device, as cuDNN writes them.
struct TestedGpu {
  const char* name;
  int64_t memory, l2_bytes, memory_khz;

  std::string Json() const {
    return absl::StrCat(R"({"deviceName": "NVIDIA )", name, R"(",
  "deviceVer": 900, "driverVer": 13000,
  "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0,
  "supportCoopLaunch": 1, "multiProcessorCount": 132, "warpSize": 32,
  "maxGridSize": [2147483647, 65535, 65535],
  "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024,
  "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536,
  "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000,
  "totalGlobalMem": )",
                        memory, R"(, "l2CacheSize": )", l2_bytes,
                        R"(, "memClockRateKHz": )", memory_khz, "}");
  }
};
constexpr TestedGpu kH100 = {"H100 80GB HBM3", 85045477376, 52428800, 2619000};
constexpr TestedGpu kH200 = {"H200", 150110011392, 62914560, 3201000};
void PrintTo(const TestedGpu& gpu, std::ostream* os) { *os << gpu.name; }

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

class CudnnPlansTest : public testing::TestWithParam<TestedGpu> {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(device_,
                                 CudnnPropertiesFromJson(GetParam().Json()));
  }

  absl::StatusOr<CudnnPlan> Forward(const CudnnAttentionShape& s) {
    return BuildForwardPlan(s, CudnnAttentionStrides::Packed(s), device_);
  }
  absl::StatusOr<CudnnPlan> Backward(const CudnnAttentionShape& s,
                                     bool deterministic) {
    return BuildBackwardPlan(s, CudnnAttentionStrides::Packed(s), deterministic,
                             device_);
  }

  CudnnDescriptor device_;
};

TEST_P(CudnnPlansTest, ForwardTakesModelShapesWithAlmostNoWorkspace) {
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
TEST_P(CudnnPlansTest, WorkspaceOfTheBackwardIsWithinItsBound) {
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

CudnnStrides StridesOf(const TestTensor& x) {
  const ConstTensorView view = x.view();
  return {.sequence = view.strides()[0],
          .position = view.strides()[1],
          .head = view.strides()[2]};
}

// No block of the tests on a GPU is left to our own kernel.
TEST_P(CudnnPlansTest, TakesTheCasesOfTestsOnAGpu) {
  std::mt19937_64 random(1);
  for (const MaskedAttentionCase& c : kGpuAttentionCases) {
    SCOPED_TRACE(testing::Message() << c.sizes);
    const AttentionProblem problem(DType::kBF16, c.sizes, random);
    const AttentionSizes& s = c.sizes;
    const CudnnAttentionShape shape =
        Shape(s.sequences, s.queries, s.keys, s.heads, s.kv_heads, s.d,
              c.kind == BlockKind::kCausal);
    auto strides = CudnnAttentionStrides::Packed(shape);
    strides.query = StridesOf(problem.query);
    strides.key = StridesOf(problem.key);
    strides.value = StridesOf(problem.value);
    strides.output_gradient = StridesOf(problem.output_gradient);
    TESSERA_EXPECT_OK(BuildForwardPlan(shape, strides, device_));
    for (const bool deterministic : {false, true}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const CudnnPlan plan,
          BuildBackwardPlan(shape, strides, deterministic, device_));
      EXPECT_LE(plan.workspace_bytes(),
                CudnnBackwardWorkspaceBytes(shape, deterministic));
    }
  }
}

// Queries, keys and values are slices of a fused product, and their gradients
// are slices of its gradient.
TEST_P(CudnnPlansTest, TakesSlicesOfFusedRows) {
  for (const CudnnAttentionShape& shape :
       {Shape(2, 512, 512, 8, 2, 64, true),
        Shape(2, 4096, 4096, 32, 8, 128, true),
        Shape(4, 4096, 4096, 32, 8, 64, true),
        Shape(1, 333, 333, 6, 6, 40, true),
        Shape(2, 512, 512, 8, 2, 128, false)}) {
    SCOPED_TRACE(testing::PrintToString(shape));
    const int64_t row = (shape.heads + 2 * shape.kv_heads) * shape.head_size;
    const CudnnStrides slice = {.sequence = shape.queries * row,
                                .position = row,
                                .head = shape.head_size};
    auto strides = CudnnAttentionStrides::Packed(shape);
    strides.query = strides.key = strides.value = slice;
    strides.query_gradient = strides.key_gradient = strides.value_gradient =
        slice;
    TESSERA_EXPECT_OK(BuildForwardPlan(shape, strides, device_));
    for (const bool deterministic : {false, true}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const CudnnPlan plan,
          BuildBackwardPlan(shape, strides, deterministic, device_));
      EXPECT_LE(plan.workspace_bytes(),
                CudnnBackwardWorkspaceBytes(shape, deterministic));
    }
  }
}

TEST_P(CudnnPlansTest, RefusesWhatCudnnHasNoEngineFor) {
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

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlansTest, testing::Values(kH100, kH200));

TEST(CudnnGraphTest, MalformedPropertiesAreRefused) {
  EXPECT_FALSE(CudnnPropertiesFromJson("{\"deviceVer\": 900}").ok());
}

TEST(CudnnGraphTest, ReportsTheFirstErrorOfADescription) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const CudnnDescriptor h200,
                               CudnnPropertiesFromJson(kH200.Json()));
  CudnnGraphBuilder graph;
  const CudnnTensor x = graph.Virtual(CUDNN_DATA_FLOAT, {1, -1, 2, 2});
  graph.Pointwise(CUDNN_POINTWISE_EXP, x, x);
  EXPECT_THAT(std::move(graph).Build(h200),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a tensor of a cuDNN graph")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
