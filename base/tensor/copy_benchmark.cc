// Compares copies of strided tensors with the bandwidth of memcpy.
//
// share_of_memcpy is memcpy's time in this run for as many bytes (reads plus
// writes), divided by the time of the copy.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor/copy.h"
#include "base/tensor/tensor.h"
#include "base/testing/memcpy_bandwidth.h"
#include "benchmark/benchmark.h"

namespace tessera {
namespace {

// The part of a matrix of `rows` by `columns` that is copied.
enum class Part { kAll, kLeftHalf, kTransposed, kEveryOther };

absl::StatusOr<TensorView> Choose(TensorView matrix, Part part) {
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  switch (part) {
    case Part::kAll:
      return matrix;
    case Part::kLeftHalf:
      return matrix.Narrow(1, 0, columns / 2);
    case Part::kTransposed:
      return matrix.Transpose(0, 1);
    case Part::kEveryOther: {
      TESSERA_ASSIGN_OR_RETURN(
          const Layout layout,
          Layout::Strided({{rows, columns / 2}}, {{columns, 2}}));
      const auto bytes = static_cast<size_t>(matrix.size_in_bytes());
      return TensorView::Create(std::span(matrix.data(), bytes), matrix.dtype(),
                                layout);
    }
  }
  return absl::InternalError("no such part");
}

absl::Status RunCopy(benchmark::State& state, DType dtype, Part part) {
  const int64_t side = state.range(0);
  TESSERA_ASSIGN_OR_RETURN(Tensor matrix,
                           Tensor::Create(dtype, {{side, side}}));
  TESSERA_RETURN_IF_ERROR(Fill(matrix.view(), 1.0f));
  TESSERA_ASSIGN_OR_RETURN(const TensorView source,
                           Choose(matrix.view(), part));
  TESSERA_ASSIGN_OR_RETURN(Tensor target,
                           Tensor::Create(dtype, source.shape()));
  TESSERA_RETURN_IF_ERROR(Fill(target.view(), 2.0f));
  const BandwidthMeter meter(static_cast<size_t>(2 * source.size_in_bytes()));
  for (auto _ : state) {
    TESSERA_RETURN_IF_ERROR(Copy(source, target.view()));
    benchmark::ClobberMemory();
  }
  meter.Report(state);
  return absl::OkStatus();
}

void BM_Copy(benchmark::State& state, DType dtype, Part part) {
  const absl::Status status = RunCopy(state, dtype, part);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
void Sizes(benchmark::internal::Benchmark* b) {
  b->ArgName("side")->Arg(256)->Arg(4096);
}
BENCHMARK_CAPTURE(BM_Copy, f32_contiguous, DType::kF32, Part::kAll)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Copy, f32_left_half, DType::kF32, Part::kLeftHalf)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Copy, f32_transposed, DType::kF32, Part::kTransposed)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Copy, f32_every_other, DType::kF32, Part::kEveryOther)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Copy, bf16_transposed, DType::kBF16, Part::kTransposed)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Copy, bf16_every_other, DType::kBF16, Part::kEveryOther)
    ->Apply(Sizes);

// A fill has half of memcpy's traffic, because it does not read.
void BM_Fill(benchmark::State& state) {
  std::vector<float> values(static_cast<size_t>(state.range(0)));
  const absl::StatusOr<TensorView> view =
      TensorView::Of(std::span(values), {{state.range(0)}});
  const BandwidthMeter meter(values.size() * sizeof(float));
  for (auto _ : state) {
    benchmark::DoNotOptimize(Fill(*view, 0.5f));
    benchmark::ClobberMemory();
  }
  meter.Report(state);
}
BENCHMARK(BM_Fill)->ArgName("count")->Arg(1 << 16)->Arg(1 << 24);

}  // namespace
}  // namespace tessera
