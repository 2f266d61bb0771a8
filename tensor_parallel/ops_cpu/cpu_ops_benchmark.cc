// CpuOps compared with the machine's peaks in the same run, in one thread.
//
// Products: share_of_peak is their rate divided by that of a square of 1024 of
// the same type, by cpu::Multiply. Attention counts the products within a
// causal mask. Everything else: share_of_triad is the bytes it must read and
// write divided by its time, relative to the same figure for a[i] = b[i] + s
// c[i] on three arrays of the same total size.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "benchmark/benchmark.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/ops_cpu/gemm.h"
#include "tensor_parallel/ops_cpu/kernels.h"

namespace tessera::tensor_parallel {
namespace {

// CPU time of this thread; excludes other programs.
double SecondsOf(const std::function<void()>& body) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) +
           1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  body();
  return now() - start;
}

// The best of several runs, in seconds.
double Best(int repeats, const std::function<void()>& body) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) best = std::min(best, SecondsOf(body));
  return best;
}

template <typename T>
double PeakOf() {
  constexpr int64_t kSize = 1024;
  const std::vector<T> a(kSize * kSize, T(1.0f)), b(kSize * kSize, T(2.0f));
  std::vector<cpu::StatisticOf<T>> c(kSize * kSize);
  const double seconds = Best(5, [&] {
    cpu::Multiply<T>({kSize, kSize, kSize}, 1, {a.data(), kSize},
                     {b.data(), kSize}, 0, {c.data(), kSize});
  });
  return 2.0 * kSize * kSize * kSize / seconds;
}

// Operations per second of a large square product, measured now.
double Peak(DType dtype) {
  if (dtype == DType::kF64) return PeakOf<double>();
  return dtype == DType::kBF16 ? PeakOf<BF16>() : PeakOf<float>();
}

// Bytes per second of a triad over `bytes` bytes, measured now.
double Triad(int64_t bytes) {
  const int64_t count = bytes / 3 / static_cast<int64_t>(sizeof(float)) + 1;
  std::vector<float> a(count), b(count, 1.0f), c(count, 2.0f);
  const double seconds = Best(10, [&] {
    for (int64_t i = 0; i < count; ++i) a[i] = b[i] + 3.0f * c[i];
    benchmark::DoNotOptimize(a.data());
    benchmark::ClobberMemory();
  });
  return 3.0 * static_cast<double>(count) * sizeof(float) / seconds;
}

void ReportRate(benchmark::State& state, const std::string& name, double work,
                double limit, const char* unit) {
  state.counters[unit] =
      benchmark::Counter(work, benchmark::Counter::kIsIterationInvariantRate);
  state.counters[name] = benchmark::Counter(
      work / limit, benchmark::Counter::kIsIterationInvariantRate);
}

Tensor Made(DType dtype, std::vector<int64_t> shape, double value = 0.01) {
  Tensor tensor = *Tensor::Create(dtype, shape);
  CpuOps({.threads = 1}).Run(op::Fill{value, tensor.view()}).IgnoreError();
  return tensor;
}

void Check(benchmark::State& state, const absl::Status& status) {
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}

// The products of a linear layer of k inputs and n outputs, for m tokens; the
// weight's gradient is added to one of f32.
enum class LinearProduct { kForward, kInputGradient, kWeightGradient };

void BM_Gemm(benchmark::State& state, DType dtype, LinearProduct product) {
  CpuOps ops({.threads = 1});
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  Tensor x = Made(dtype, {m, k}), weight = Made(dtype, {n, k}),
         y = Made(dtype, {m, n});
  Tensor gradient =
      Made(dtype == DType::kF64 ? DType::kF64 : DType::kF32, {n, k});
  const double peak = Peak(dtype);
  for (auto _ : state) {
    switch (product) {
      case LinearProduct::kForward:
        Check(state,
              ops.Run(op::Gemm{
                  {.transpose_b = true}, x.view(), weight.view(), y.view()}));
        break;
      case LinearProduct::kInputGradient:
        Check(state, ops.Run(op::Gemm{{}, y.view(), weight.view(), x.view()}));
        break;
      case LinearProduct::kWeightGradient:
        Check(state, ops.Run(op::Gemm{{.transpose_a = true, .beta = 1},
                                      y.view(),
                                      x.view(),
                                      gradient.view()}));
        break;
    }
  }
  ReportRate(state, "share_of_peak", 2.0 * static_cast<double>(m * n * k), peak,
             "flops");
}

// range(0) tokens with 8 heads of range(2) elements and range(1) kv heads,
// causal.
class AttentionProblem {
 public:
  AttentionProblem(const benchmark::State& state, DType dtype)
      : tokens_(state.range(0)),
        d_(state.range(2)),
        query_(Made(dtype, {1, tokens_, kHeads, d_})),
        key_(Made(dtype, {1, tokens_, state.range(1), d_})),
        statistics_(dtype == DType::kF64 ? DType::kF64 : DType::kF32),
        output_(Made(statistics_, {1, tokens_, kHeads, d_})),
        log_sum_exp_(Made(statistics_, {1, tokens_, kHeads}, 8)),
        key_gradient_(Made(statistics_, {1, tokens_, state.range(1), d_})),
        value_gradient_(Made(statistics_, {1, tokens_, state.range(1), d_})) {}

  AttentionBlock Block() const {
    return {query_.view(), key_.view(), key_.view(), BlockKind::kCausal,
            1 / std::sqrt(double(d_))};
  }
  AttentionState State() { return {output_.view(), log_sum_exp_.view()}; }
  AttentionGradients Gradients() {
    return {query_.view(),         output_.view(), log_sum_exp_.view(),
            log_sum_exp_.view(),   output_.view(), key_gradient_.view(),
            value_gradient_.view()};
  }
  // Flops of one product: a causal mask keeps half of tokens x tokens.
  double Flops() const {
    const auto pairs = static_cast<double>(tokens_ * (tokens_ + 1)) / 2;
    return 2 * pairs * static_cast<double>(kHeads * d_);
  }

 private:
  static constexpr int64_t kHeads = 8;
  int64_t tokens_, d_;
  Tensor query_, key_;
  DType statistics_;
  Tensor output_, log_sum_exp_, key_gradient_, value_gradient_;
};

void BM_Attend(benchmark::State& state, DType dtype) {
  CpuOps ops({.threads = 1});
  AttentionProblem problem(state, dtype);
  const double peak = Peak(dtype);
  for (auto _ : state) {
    Check(state, ops.Run(op::Attend{problem.Block(), problem.State()}));
  }
  ReportRate(state, "share_of_peak", 2 * problem.Flops(), peak, "flops");
}

void BM_AttendGradient(benchmark::State& state, DType dtype) {
  CpuOps ops({.threads = 1});
  AttentionProblem problem(state, dtype);
  const double peak = Peak(dtype);
  for (auto _ : state) {
    Check(state,
          ops.Run(op::AttendGradient{problem.Block(), problem.Gradients()}));
  }
  ReportRate(state, "share_of_peak", 5 * problem.Flops(), peak, "flops");
}

constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 2048;

// The operands of the memory-bound operations.
struct Activations {
  explicit Activations(DType dtype)
      : x(Made(dtype, {kRows, kColumns})),
        y(Made(dtype, {kRows, kColumns})),
        z(Made(dtype, {kRows, kColumns})),
        weight(Made(dtype, {kColumns})),
        sums(Made(dtype == DType::kF64 ? DType::kF64 : DType::kF32, {kRows})),
        largest(Made(sums.dtype(), {kRows}, 0.5)),
        targets(*Tensor::Create(DType::kI64, {{kRows}})),
        ids(*Tensor::Create(DType::kI64, {{kRows}})),
        scales(Made(DType::kF64, {kRows}, 0.5)),
        turns(Made(sums.dtype(), {kRows, 64}, 0.5)) {
    const std::span<int64_t> target = *targets.view().AsSpan<int64_t>();
    const std::span<int64_t> id = *ids.view().AsSpan<int64_t>();
    for (int64_t i = 0; i < kRows; ++i) {
      target[i] = 3;
      id[i] = i * 7919 % kRows;
    }
  }
  Tensor x, y, z, weight, sums, largest;
  Tensor targets, ids, scales, turns;
};

struct MemoryBound {
  const char* name;
  int passes;  // Reads and writes of a tensor x, y or z.
  absl::Status (*run)(Ops& ops, Activations& a);
};

constexpr MemoryBound kMemoryBound[] = {
    {"Add", 3,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::Add{a.x.view(), a.y.view()});
     }},
    {"Scale", 2,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::Scale{1, a.x.view()});
     }},
    {"AddBias", 2,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::AddBias{a.weight.view(), a.x.view()});
     }},
    {"SumRows", 1,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::SumRows{a.x.view(), a.weight.view()});
     }},
    {"RmsNorm", 2,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::RmsNorm{1e-5, a.x.view(), a.weight.view(), a.y.view(),
                                  a.sums.view()});
     }},
    {"RmsNormInputGradient", 3,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::RmsNormInputGradient{
           a.x.view(), a.y.view(), a.weight.view(), a.sums.view(), a.z.view()});
     }},
    {"AddThenRmsNorm", 4,
     [](Ops& ops, Activations& a) {
       absl::Status status = ops.Run(op::Add{a.z.view(), a.x.view()});
       status.Update(ops.Run(op::RmsNorm{1e-5, a.x.view(), a.weight.view(),
                                         a.y.view(), a.sums.view()}));
       return status;
     }},
    {"AddRmsNorm", 4,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::AddRmsNorm{1e-5, a.z.view(), a.weight.view(),
                                     a.x.view(), a.y.view(), a.sums.view()});
     }},
    {"RmsNormInputGradientThenAdd", 3,
     [](Ops& ops, Activations& a) {
       absl::Status status = ops.Run(op::RmsNormInputGradient{
           a.x.view(), a.y.view(), a.weight.view(), a.sums.view(), a.z.view()});
       status.Update(ops.Run(op::Add{a.x.view(), a.z.view()}));
       return status;
     }},
    {"AddRmsNormInputGradient", 3,
     [](Ops& ops, Activations& a) {
       return ops.Run(
           op::AddRmsNormInputGradient{a.x.view(), a.y.view(), a.weight.view(),
                                       a.sums.view(), a.x.view(), a.z.view()});
     }},
    {"RmsNormWeightGradient", 2,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::RmsNormWeightGradient{
           a.x.view(), a.y.view(), a.sums.view(), a.weight.view()});
     }},
    {"SwiGlu", 3,
     [](Ops& ops, Activations& a) {
       return ops.Run(
           op::Glu{GluKind::kSwiGlu, a.x.view(), a.y.view(), a.z.view()});
     }},
    {"SwiGluGradientInPlace", 5,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::GluGradient{GluKind::kSwiGlu, a.z.view(), a.x.view(),
                                      a.y.view(), a.x.view(), a.y.view()});
     }},
    {"GeGlu", 3,
     [](Ops& ops, Activations& a) {
       return ops.Run(
           op::Glu{GluKind::kGeGlu, a.x.view(), a.y.view(), a.z.view()});
     }},
    {"GeGluGradientInPlace", 5,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::GluGradient{GluKind::kGeGlu, a.z.view(), a.x.view(),
                                      a.y.view(), a.x.view(), a.y.view()});
     }},
    {"RowMax", 1,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::RowMax{a.x.view(), a.sums.view()});
     }},
    {"SumExp", 1,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::SumExp{a.x.view(), a.largest.view(), a.sums.view()});
     }},
    {"CrossEntropyGradient", 2,
     [](Ops& ops, Activations& a) {
       return ops.Run(op::CrossEntropyGradient{a.largest.view(),
                                               a.largest.view(),
                                               {0, kColumns},
                                               a.targets.view(),
                                               a.scales.view(),
                                               {},
                                               a.x.view()});
     }},
    {"Rotate", 2,
     [](Ops& ops, Activations& a) {
       return ops.Run(
           op::Rotate{false, a.turns.view(),
                      *a.x.view().Reshape({{kRows, kColumns / 64, 64}})});
     }},
    {"GatherRows", 2,
     [](Ops& ops, Activations& a) {
       return ops.Run(
           op::GatherRows{a.x.view(), {0, kRows}, a.ids.view(), a.y.view()});
     }},
    {"AddRows", 3,
     [](Ops& ops, Activations& a) {
       return ops.Run(
           op::AddRows{a.x.view(), {0, kRows}, a.ids.view(), a.y.view()});
     }},
};

void BM_MemoryBound(benchmark::State& state, const MemoryBound& operation,
                    DType dtype) {
  CpuOps ops({.threads = 1});
  Activations activations(dtype);
  const int64_t bytes =
      kRows * kColumns * SizeInBytes(dtype) * operation.passes;
  const double triad = Triad(bytes);
  for (auto _ : state) Check(state, operation.run(ops, activations));
  ReportRate(state, "share_of_triad", static_cast<double>(bytes), triad,
             "bytes");
}

// The cost of a call, without the work: 64 elements.
void BM_SmallFill(benchmark::State& state) {
  CpuOps ops({.threads = 1});
  Tensor x = Made(DType::kF32, {64});
  for (auto _ : state) Check(state, ops.Run(op::Fill{1, x.view()}));
}
BENCHMARK(BM_SmallFill);

const bool kRegistered = [] {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const std::string type = absl::StrCat("/", DTypeName(dtype));
    const std::pair<const char*, LinearProduct> products[] = {
        {"Gemm", LinearProduct::kForward},
        {"GemmInputGradient", LinearProduct::kInputGradient},
        {"GemmWeightGradient", LinearProduct::kWeightGradient}};
    for (const auto& [name, product] : products) {
      benchmark::RegisterBenchmark(absl::StrCat(name, type).c_str(), BM_Gemm,
                                   dtype, product)
          ->ArgNames({"tokens", "out", "in"})
          ->Args({1024, 1024, 1024})
          ->Args({512, 2048, 512})
          ->Args({128, 768, 768})
          ->Args({1, 4096, 1024});
    }
    for (const bool backward : {false, true}) {
      benchmark::RegisterBenchmark(
          absl::StrCat(backward ? "AttendGradient" : "Attend", type).c_str(),
          backward ? BM_AttendGradient : BM_Attend, dtype)
          ->ArgNames({"tokens", "kv_heads", "d"})
          ->Args({1024, 8, 128})
          ->Args({1024, 2, 128})
          ->Args({1024, 2, 64})
          ->Args({128, 4, 32});
    }
    for (const MemoryBound& operation : kMemoryBound) {
      benchmark::RegisterBenchmark(absl::StrCat(operation.name, type).c_str(),
                                   BM_MemoryBound, operation, dtype);
    }
  }
  return true;
}();

}  // namespace
}  // namespace tessera::tensor_parallel
