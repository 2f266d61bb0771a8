// Every operation of Ops on emulated kernels, whose bits must not depend on the
// order in which threads run; and the operations that have the bits of CpuOps.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/cuda/testing/emulation.h"
#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

using ::tessera::emulated::EmulationOptions;
using ::tessera::emulated::EmulationOrder;
using ::tessera::emulated::ScopedEmulation;

// The widths of rows: one that is accessed by element, and one that is accessed
// by 16 bytes. Both take several blocks of threads or several turns of one.
constexpr int64_t kWidths[] = {1037, 1040};

// The operands of a case: random, and the same for the same calls.
class Operands {
 public:
  explicit Operands(DType dtype) : dtype_(dtype), random_(7) {}

  DType dtype() const { return dtype_; }
  DType statistics() const { return StatisticsFor(dtype_); }

  TestTensor& New(DType dtype, const Dims& shape, int64_t gap = 0) {
    return tensors_.emplace_back(dtype, shape, gap).Randomise(random_);
  }
  TestTensor& New(const Dims& shape, int64_t gap = 0) {
    return New(dtype_, shape, gap);
  }
  // In [begin, end).
  const std::vector<int64_t>& Numbers(int64_t count, int64_t begin,
                                      int64_t end) {
    std::vector<int64_t>& numbers = numbers_.emplace_back();
    for (int64_t i = 0; i < count; ++i) {
      const auto range = static_cast<uint64_t>(end - begin);
      numbers.push_back(begin + static_cast<int64_t>(random_() % range));
    }
    return numbers;
  }

  // Those of all tensors, gaps included.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const TestTensor& tensor : tensors_) {
      all.insert(all.end(), tensor.bytes().begin(), tensor.bytes().end());
    }
    return all;
  }

 private:
  DType dtype_;
  std::mt19937_64 random_;
  std::deque<TestTensor> tensors_;  // Views stay valid.
  std::deque<std::vector<int64_t>> numbers_;
};

// Values at which rounding and signs show.
TestTensor& WithEdges(TestTensor& x) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double edges[] = {-0.0,  0.0,      infinity,    -infinity,
                          1e38,  0x1.01p0, 0x1.03p0,    0x1.018p0,
                          -1e38, 0x1p-130, -0x1.8p-133, 0x1.000001p0};
  int64_t at = 0;
  for (const double edge : edges) x.set(at++ * 3, edge);
  return x;
}

struct OpsCase {
  std::string name;
  bool has_bits_of_cpu;
  std::function<absl::Status(Ops&, Operands&)> run;
};
std::ostream& operator<<(std::ostream& os, const OpsCase& c) {
  return os << c.name;
}

absl::Status RunGemm(Ops& ops, Operands& x) {
  return ops.Run(op::Gemm{{.transpose_b = true, .beta = 0.5},
                          x.New({5, 37}, 1).view(),
                          x.New({7, 37}).view(),
                          x.New({5, 7}, 2).view()});
}

TestTensor& One(Operands& x) {
  TestTensor& one = x.New(DType::kF32, {1});
  one.set(0, 1.7);
  return one;
}

// Fp8 is made of f32 and bf16 alone.
DType Fp8Source(const Operands& x) {
  return x.dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

absl::Status RunCastTranspose(Ops& ops, Operands& x) {
  for (const DType to : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const int64_t n : kWidths) {
      for (const int64_t m : {70, 80}) {
        TESSERA_RETURN_IF_ERROR(ops.Run(op::CastTranspose{
            WithEdges(x.New(Fp8Source(x), {m, n})).view(), One(x).view(),
            One(x).view(), x.New(to, {m, n}).view(),
            x.New(to, {n, m}).view()}));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RunGemmFp8(Ops& ops, Operands& x) {
  return ops.Run(op::GemmFp8{{.accumulate = true},
                             x.New(DType::kF8E5M2, {16, 48}).view(),
                             One(x).view(),
                             x.New(DType::kF8E4M3, {32, 48}, 16).view(),
                             One(x).view(),
                             x.New(Fp8Source(x), {16, 32}).view()});
}

absl::Status RunUpdateScales(Ops& ops, Operands& x) {
  constexpr int64_t kOperands = 300;
  const auto positive = [&](const Dims& shape) -> TestTensor& {
    TestTensor& tensor = x.New(DType::kF32, shape);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      tensor.set(i, std::fabs(tensor.at(i)));
    }
    return tensor;
  };
  return ops.Run(op::UpdateScales{
      1, positive({kOperands}).view(), positive({kOperands}).view(),
      positive({5, kOperands}).view(), positive({kOperands}).view(),
      positive({kOperands}).view()});
}

absl::Status RunAddBias(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(ops.Run(op::AddBias{
        WithEdges(x.New({n})).view(), WithEdges(x.New({3, n})).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunSumRows(Ops& ops, Operands& x) {
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::SumRows{x.New({45, 301}).view(), x.New({301}).view()}));
  return ops.Run(op::SumRows{x.New({18, 260}, 3).view(),
                             x.New(x.statistics(), {260}).view()});
}

absl::Status RunCopy(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(ops.Run(op::Copy{
        WithEdges(x.New({2, 3, n}, 8)).view(), x.New({2, 3, n}).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunAdd(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(ops.Run(
        op::Add{WithEdges(x.New({3, n})).view(), x.New({3, n}, 1).view()}));
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::Add{x.New({n}).view(), x.New(x.statistics(), {n}).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunScale(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::Scale{1.0 / 3, WithEdges(x.New({3, n}, 8)).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunFill(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0.1, x.New({3, n}, 8).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunCast(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::Cast{WithEdges(x.New({3, n})).view(),
                         x.New(x.statistics(), {3, n}).view()}));
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::Cast{WithEdges(x.New(x.statistics(), {3, n}, 8)).view(),
                         x.New({3, n}).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunDropout(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::Dropout{{.key = {.seed = 3, .stream = 5},
                             .probability = 0.3,
                             .rows = x.Numbers(3, 0, 1000)},
                            WithEdges(x.New({3, n})).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunNorms(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    const auto input = x.New({17, n}).view();
    const auto weight = x.New({n}).view();
    const auto gradient = x.New({17, n}).view();
    const auto inverse = x.New(x.statistics(), {17}).view();
    TESSERA_RETURN_IF_ERROR(ops.Run(
        op::RmsNorm{1e-5, input, weight, x.New({17, n}).view(), inverse}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::RmsNormInputGradient{
        gradient, input, weight, inverse, x.New({17, n}).view()}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::RmsNormWeightGradient{
        gradient, input, inverse, x.New(x.statistics(), {n}).view()}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::AddRmsNormGradients{
        gradient, input, weight, inverse, x.New({17, n}).view(),
        x.New({17, n}).view(), x.New(x.statistics(), {n}).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunGlu(Ops& ops, Operands& x) {
  for (const GluKind kind :
       {GluKind::kSwiGlu, GluKind::kGeGlu, GluKind::kClampedGlu}) {
    for (const int64_t n : kWidths) {
      const auto gate = x.New({2, n}).view(), up = x.New({2, n}).view();
      TESSERA_RETURN_IF_ERROR(
          ops.Run(op::Glu{kind, gate, up, x.New({2, n}).view()}));
      TESSERA_RETURN_IF_ERROR(
          ops.Run(op::GluGradient{kind, x.New({2, n}).view(), gate, up,
                                  x.New({2, n}).view(), x.New({2, n}).view()}));
    }
  }
  return absl::OkStatus();
}

absl::Status RunRotate(Ops& ops, Operands& x) {
  for (const int64_t d : {70, 64}) {
    for (const bool inverse : {false, true}) {
      const TestTensor table = RotaryTableOf(RotaryFrequencies().Of(d, 4096),
                                             x.Numbers(5, 0, 4096), x.dtype());
      TESSERA_RETURN_IF_ERROR(ops.Run(op::Rotate{
          inverse, table.view(), x.New({5, 9, d}, d == 64 ? 0 : 2).view()}));
    }
  }
  return absl::OkStatus();
}

absl::Status RunGatherRows(Ops& ops, Operands& x) {
  const IndexRange held = {3, 12};
  for (const int64_t n : kWidths) {
    TESSERA_RETURN_IF_ERROR(ops.Run(
        op::GatherRows{WithEdges(x.New({9, n})).view(), held,
                       ListOf(x.Numbers(7, 0, 15)), x.New({7, n}, 8).view()}));
  }
  return absl::OkStatus();
}

// Enough ids for several blocks to be sorted and merged; those of a few rows
// repeat often.
absl::Status RunAddRows(Ops& ops, Operands& x) {
  const IndexRange held = {3, 40};
  TESSERA_RETURN_IF_ERROR(ops.Run(op::AddRows{x.New({1100, 3}).view(), held,
                                              ListOf(x.Numbers(1100, 0, 44)),
                                              x.New({37, 3}).view()}));
  return ops.Run(op::AddRows{x.New({19, 1040}).view(), held,
                             ListOf(x.Numbers(19, 5, 9)),
                             x.New(x.statistics(), {37, 1040}).view()});
}

absl::Status RunCrossEntropy(Ops& ops, Operands& x) {
  for (const int64_t n : kWidths) {
    const IndexRange held = {11, 11 + n};
    const auto logits = x.New({5, n}).view();
    const auto targets = ListOf(x.Numbers(5, 0, 15 + n));
    const auto largest = x.New(x.statistics(), {5}).view();
    const auto sum = x.New(x.statistics(), {5}).view();
    const auto picked = x.New(x.statistics(), {5}).view();
    TESSERA_RETURN_IF_ERROR(ops.Run(op::RowMax{logits, largest}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::SumExp{logits, largest, sum}));
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::MaxAndSumExp{logits, x.New(x.statistics(), {5}).view(),
                                 x.New(x.statistics(), {5}).view()}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::Pick{logits, held, targets, picked}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::CrossEntropyLosses{
        largest, sum, picked, targets, x.New(DType::kF64, {5}).view()}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::CrossEntropyGradient{
        largest,
        sum,
        held,
        targets,
        x.New(DType::kF64, {5}).view(),
        {.label_smoothing = 0.1, .z_loss = 1e-3, .vocabulary = held.end},
        logits}));
  }
  return absl::OkStatus();
}

absl::Status RunSum(Ops& ops, Operands& x) {
  return ops.Run(op::Sum{1.0 / 3, x.New(DType::kF64, {kWidths[0]}).view(),
                         x.New(DType::kF64, {1}).view()});
}

absl::Status RunAttention(Ops& ops, Operands& x) {
  const Dims queries = {1, 70, 2, 37}, keys = {1, 81, 1, 37};
  const Dims rows = {1, 70, 2};
  const AttentionBlock block = {
      .query = x.New(queries, 1).view(),
      .key = x.New(keys).view(),
      .value = x.New(keys).view(),
      .kind = BlockKind::kCausal,
      .scale = 1 / std::sqrt(37.0),
  };
  const AttentionState state = {x.New(x.statistics(), queries).view(),
                                x.New(x.statistics(), rows).view()};
  // Random values of the state stand for the keys of an earlier block.
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Attend{block, state}));
  TESSERA_RETURN_IF_ERROR(ops.Run(
      op::MaxScores{block, x.New(x.statistics(), {queries[2]}).view()}));
  const auto gradient = x.New(queries).view();
  const auto delta = x.New(x.statistics(), rows).view();
  TESSERA_RETURN_IF_ERROR(ops.Run(op::RowDots{state.output, gradient, delta}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::AttendGradient{
      block,
      {.output_gradient = gradient,
       .output = state.output,
       .log_sum_exp = state.log_sum_exp,
       .delta = delta,
       .query_gradient = x.New(x.statistics(), queries).view(),
       .key_gradient = x.New(x.statistics(), keys).view(),
       .value_gradient = x.New(x.statistics(), keys).view()}}));
  AttentionBlock whole = block;
  whole.is_whole = true;
  const auto output = x.New(queries, 1).view();
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::Attend{whole, {output, state.log_sum_exp}}));
  return ops.Run(op::AttendGradient{whole,
                                    {.output_gradient = gradient,
                                     .output = output,
                                     .log_sum_exp = state.log_sum_exp,
                                     .delta = std::nullopt,
                                     .query_gradient = x.New(queries, 1).view(),
                                     .key_gradient = x.New(keys, 1).view(),
                                     .value_gradient = x.New(keys, 1).view()}});
}

absl::Status RunSinks(Ops& ops, Operands& x) {
  const auto sinks = x.New({7}).view();
  const auto sums = x.New(x.statistics(), {90, 7}).view();
  TESSERA_RETURN_IF_ERROR(ops.Run(
      op::AddSinks{sinks, sums, x.New(x.statistics(), {90, 7}).view()}));
  return ops.Run(
      op::SinkGradients{sinks, sums, x.New(x.statistics(), {90, 7}).view()});
}

// Two sequences with a choice of 5 experts for each of their tokens, in several
// turns of a block; with and without padding.
absl::Status RunGroupByExpert(Ops& ops, Operands& x) {
  const int64_t tokens = 600, k = 3;
  const std::vector<int64_t> experts = x.Numbers(tokens * k, 0, 5);
  for (const bool padded : {false, true}) {
    const int64_t rows = padded ? 5 * 350 : tokens * k;
    TESSERA_RETURN_IF_ERROR(ops.Run(op::GroupByExpert{
        350, padded, *ListOf(experts).Reshape({{tokens, k}}),
        x.New(DType::kI64, {2, 5}).view(), x.New(DType::kI64, {rows}).view(),
        x.New(DType::kI64, {rows}).view()}));
  }
  return absl::OkStatus();
}

absl::Status RunRoute(Ops& ops, Operands& x) {
  const RouterOptions options = {
      .per_token = 3, .groups = 4, .groups_per_token = 2};
  const TensorView logits = x.New(x.statistics(), {90, 40}).view();
  const TensorView weights = x.New(x.statistics(), {90, 3}).view();
  const TensorView experts = x.New(DType::kI64, {90, 3}).view();
  const TensorView loads = x.New(DType::kI64, {2, 40}).view();
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Route{
      options, logits, x.New(x.statistics(), {40}).view(), weights, experts}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::GroupByExpert{
      -1, false, experts, loads, x.New(DType::kI64, {270}).view(),
      x.New(DType::kI64, {270}).view()}));
  return ops.Run(op::RouteGradient{options, logits, experts, weights, loads,
                                   0.3, 0.1,
                                   x.New(x.statistics(), {90, 40}).view()});
}

const OpsCase kCases[] = {
    {"Gemm", false, RunGemm},       {"CastTranspose", true, RunCastTranspose},
    {"GemmFp8", false, RunGemmFp8}, {"UpdateScales", true, RunUpdateScales},
    {"AddBias", true, RunAddBias},  {"SumRows", false, RunSumRows},
    {"Copy", true, RunCopy},        {"Add", true, RunAdd},
    {"Scale", true, RunScale},      {"Fill", true, RunFill},
    {"Cast", true, RunCast},        {"Dropout", true, RunDropout},
    {"Norms", false, RunNorms},     {"Glu", false, RunGlu},
    {"Rotate", true, RunRotate},    {"GatherRows", true, RunGatherRows},
    {"AddRows", true, RunAddRows},  {"CrossEntropy", false, RunCrossEntropy},
    {"Sum", true, RunSum},          {"Attention", false, RunAttention},
    {"Sinks", false, RunSinks},     {"GroupByExpert", true, RunGroupByExpert},
    {"Route", false, RunRoute},
};

// The cases whose operations round each value once, so that they have the bits
// of the CPU.
std::vector<OpsCase> ExactCases() {
  std::vector<OpsCase> cases;
  for (const OpsCase& c : kCases) {
    if (c.has_bits_of_cpu) cases.push_back(c);
  }
  return cases;
}

std::string NameOfCase(const ::testing::TestParamInfo<OpsCase>& info) {
  return info.param.name;
}

// The bytes of all operands after a case has run.
std::vector<std::byte> BytesAfter(const OpsCase& c, Ops& ops, DType dtype) {
  Operands operands(dtype);
  TESSERA_EXPECT_OK(c.run(ops, operands));
  return operands.bytes();
}

class CudaOpsOrdersTest : public ::testing::TestWithParam<OpsCase> {};

TEST_P(CudaOpsOrdersTest, BitsDoNotDependOnTheOrderOfThreads) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Ops> ops,
                               emulated::CreateCudaOps(HostQueue()));
  const EmulationOptions orders[] = {
      {.order = EmulationOrder::kReverse},
      {.order = EmulationOrder::kRandom, .seed = 1},
      {.order = EmulationOrder::kRandom, .seed = 2},
      {.order = EmulationOrder::kRandom, .seed = 3},
  };
  for (const DType dtype : kComputedTypes) {
    std::vector<std::byte> expected;
    {
      const ScopedEmulation scoped({.order = EmulationOrder::kForward});
      expected = BytesAfter(GetParam(), *ops, dtype);
    }
    for (const EmulationOptions& order : orders) {
      SCOPED_TRACE(::testing::Message()
                   << dtype << ", order " << static_cast<int>(order.order)
                   << ", seed " << order.seed);
      const ScopedEmulation scoped(order);
      EXPECT_TRUE(BytesAfter(GetParam(), *ops, dtype) == expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaOpsOrdersTest, ::testing::ValuesIn(kCases),
                         NameOfCase);

class CudaOpsCpuBitsTest : public ::testing::TestWithParam<OpsCase> {};

TEST_P(CudaOpsCpuBitsTest, HasTheBitsOfCpuOps) {
  CpuOps cpu({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Ops> ops,
                               emulated::CreateCudaOps(HostQueue()));
  for (const DType dtype : kComputedTypes) {
    EXPECT_TRUE(BytesAfter(GetParam(), *ops, dtype) ==
                BytesAfter(GetParam(), cpu, dtype))
        << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Exact, CudaOpsCpuBitsTest,
                         ::testing::ValuesIn(ExactCases()), NameOfCase);

}  // namespace
}  // namespace tessera::tensor_parallel
