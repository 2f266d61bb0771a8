// Forward and backward of one block on one rank, in one thread. Mixtures have
// eight experts of half the hidden units and use two per token: the same flops
// as the block with an MLP, in products with a quarter of the rows.
//
//   share_of_gemm    flops of all products (those of attention as a causal mask
//                    leaves them) over the time, as a share of the rate of the
//                    block's own plain products, of the same shapes, measured
//                    in the same run: what the floor is
//   gemm, attention  share of the time that these take
//   other_ops        share of norms, activations, rotations, sums
//   outside          share of no operation at all: copies, bookkeeping
//   held_MB          of activations between forward and backward
//
// Times are the thread's CPU time, which excludes other programs.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "benchmark/benchmark.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

// The CPU time of this thread.
int64_t ThreadNanos() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}
double ThreadSeconds() { return 1e-9 * static_cast<double>(ThreadNanos()); }

struct Sizes {
  int64_t width, heads, kv_heads, hidden, length, sequences;
  bool is_mixture = false;
  int64_t head_size() const { return width / heads; }
  int64_t tokens() const { return length * sequences; }
};

constexpr int64_t kExperts = 8, kPerToken = 2;

Tensor Made(DType dtype, std::vector<int64_t> shape) {
  Tensor tensor = *Tensor::Create(dtype, shape);
  CpuOps({.threads = 1}).Run(op::Fill{0.01, tensor.view()}).IgnoreError();
  return tensor;
}

struct Matrix {
  int64_t out, in, rows;
};

// The matrices, and the rows that each multiplies if all experts have the same
// number of rows.
std::vector<Matrix> MatricesOf(const Sizes& s) {
  const int64_t qkv = (s.heads + 2 * s.kv_heads) * s.head_size();
  std::vector<Matrix> matrices = {{qkv, s.width, s.tokens()},
                                  {s.width, s.width, s.tokens()}};
  const int64_t experts = s.is_mixture ? kExperts : 1;
  const int64_t hidden = s.is_mixture ? s.hidden / kPerToken : s.hidden;
  const int64_t rows =
      s.is_mixture ? s.tokens() * kPerToken / kExperts : s.tokens();
  for (int64_t e = 0; e < experts; ++e) {
    matrices.push_back({2 * hidden, s.width, rows});
    matrices.push_back({s.width, hidden, rows});
  }
  return matrices;
}

double ProductFlops(const Sizes& s) {
  double flops = 0;
  for (const auto& [out, in, rows] : MatricesOf(s)) {
    flops += 6.0 * static_cast<double>(rows * out * in);
  }
  return flops;
}

// Two products in the forward and five in the backward, over visible pairs.
double AttentionFlops(const Sizes& s) {
  const double pairs = static_cast<double>(s.sequences) *
                       static_cast<double>(s.length * (s.length + 1)) / 2;
  return 7 * 2 * pairs * static_cast<double>(s.heads * s.head_size());
}

// The flops per second of only the products.
double PlainRate(const Sizes& s, DType dtype) {
  CpuOps ops({.threads = 1});
  const DType wide = GradientDType(dtype);
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::vector<Tensor>> operands;
  for (const auto& [out, in, rows] : MatricesOf(s)) {
    std::vector<Tensor>& o = operands.emplace_back();
    o.push_back(Made(dtype, {rows, in}));
    o.push_back(Made(dtype, {out, in}));
    o.push_back(Made(dtype, {rows, out}));
    o.push_back(Made(wide, {out, in}));
  }
  for (int i = 0; i < 3; ++i) {
    const double start = ThreadSeconds();
    for (std::vector<Tensor>& o : operands) {
      ops.Run(op::Gemm{
                  {.transpose_b = true}, o[0].view(), o[1].view(), o[2].view()})
          .IgnoreError();
      ops.Run(op::Gemm{{}, o[2].view(), o[1].view(), o[0].view()})
          .IgnoreError();
      ops.Run(op::Gemm{{.transpose_a = true, .beta = 1},
                       o[2].view(),
                       o[0].view(),
                       o[3].view()})
          .IgnoreError();
    }
    best = std::min(best, ThreadSeconds() - start);
  }
  return ProductFlops(s) / best;
}

struct OpsSeconds {
  double products = 0;
  double attention = 0;
  double rest = 0;

  void Add(OperationKind kind, int64_t begin, int64_t end) {
    double& sum = kind == OperationKind::kProduct     ? products
                  : kind == OperationKind::kAttention ? attention
                                                      : rest;
    sum += 1e-9 * static_cast<double>(end - begin);
  }
};

absl::Status Pass(TransformerBlock& block, const Sizes& s, Tensor& x, Tensor& y,
                  BlockActivations& activations, int64_t* held) {
  absl::Status status =
      block.Forward(s.sequences, x.view(), y.view(), activations);
  *held = activations.bytes();
  if (status.ok()) status = block.Backward(y.view(), y.view(), activations);
  return status;
}

void BM_Block(benchmark::State& state, Sizes s, DType dtype,
              Recompute recompute) {
  CpuOps ops({.threads = 1});
  OpsSeconds of;
  ops.Observe(ThreadNanos,
              [&of](std::string_view name, int64_t begin, int64_t end) {
                of.Add(KindOf(name), begin, end);
              });
  const TensorGroup group(ops);
  auto block = TransformerBlock::Create(
      group, {group, *SequenceLayout::Contiguous(s.length, 1)},
      {.attention = {.width = s.width,
                     .heads = s.heads,
                     .kv_heads = s.kv_heads,
                     .head_size = s.head_size(),
                     .dtype = dtype},
       .hidden = s.hidden,
       .moe = {.experts = s.is_mixture ? kExperts : 0,
               .hidden = s.hidden / kPerToken,
               .router = {.per_token = kPerToken}},
       .recompute = recompute});
  std::vector<Parameter*> parameters;
  block->AppendParameters("", parameters);
  for (Parameter* p : parameters) {
    p->FillNormal(ops, {.seed = 1}, 0.02).IgnoreError();
  }
  // Tokens differ, so that all experts are used.
  auto tokens = Parameter::Create(group, {.shape = {s.tokens(), s.width},
                                          .rows = {{{0, s.tokens()}}},
                                          .columns = {0, s.width},
                                          .dtype = dtype});
  tokens->FillNormal(ops, {.seed = 2}, 1).IgnoreError();
  Tensor x = Made(dtype, {s.tokens(), s.width});
  ops.Run(op::Copy{tokens->value(), x.view()}).IgnoreError();
  Tensor y = Made(dtype, {s.tokens(), s.width});
  TensorPool pool(HostMemory());
  BlockActivations activations(pool);
  int64_t held = 0;
  Pass(*block, s, x, y, activations, &held).IgnoreError();
  const double rate = PlainRate(s, dtype);
  of = {};
  double seconds = 0;
  for (auto _ : state) {
    const double start = ThreadSeconds();
    const absl::Status status = Pass(*block, s, x, y, activations, &held);
    if (!status.ok())
      state.SkipWithError(std::string(status.message()).c_str());
    seconds += ThreadSeconds() - start;
  }
  const double flops = (ProductFlops(s) + AttentionFlops(s)) *
                       static_cast<double>(state.iterations());
  state.counters["Gflops"] = flops / seconds / 1e9;
  state.counters["share_of_gemm"] = flops / seconds / rate;
  state.counters["gemm"] = of.products / seconds;
  state.counters["attention"] = of.attention / seconds;
  state.counters["other_ops"] = of.rest / seconds;
  state.counters["outside"] =
      1 - (of.products + of.attention + of.rest) / seconds;
  state.counters["held_MB"] = static_cast<double>(held) / 1e6;
}

const bool kRegistered = [] {
  constexpr Sizes kSmall = {512, 8, 2, 1376, 512, 2};
  constexpr Sizes kLarge = {1024, 16, 4, 2816, 1024, 1};
  constexpr Sizes kMixture = {1024, 16, 4, 2816, 1024, 1, true};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const Sizes& sizes : {kSmall, kLarge, kMixture}) {
        benchmark::RegisterBenchmark(
            absl::StrCat(sizes.is_mixture ? "Mixture/" : "Block/",
                         DTypeName(dtype), "/width:", sizes.width, "/",
                         RecomputeName(recompute))
                .c_str(),
            BM_Block, sizes, dtype, recompute)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace tessera::tensor_parallel
