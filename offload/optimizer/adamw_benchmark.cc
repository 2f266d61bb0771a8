// A step of AdamW compared with the memory bandwidth.
//
// GB/s: bytes that a step must move (parameter, moments and gradient read;
// parameter, moments and copy written) divided by the time of the best step.
// share_of_triad: that divided by the best triad with the same number of
// threads in the same run (offload/optimizer/testing/triad.h: the better of
// ordinary and streaming stores). Names: moments, gradient, copy, then threads.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/dtype/dtype.h"
#include "benchmark/benchmark.h"
#include "hwy/aligned_allocator.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/testing/triad.h"

namespace tessera::offload {
namespace {

constexpr int64_t kElements = int64_t{16} << 20;
constexpr int64_t kTriadBytes = int64_t{384} << 20;

using Clock = std::chrono::steady_clock;

class Memory {
 public:
  explicit Memory(int64_t bytes)
      : size_(static_cast<size_t>(bytes)),
        bytes_(hwy::AllocateAligned<std::byte>(std::max<size_t>(size_, 1))) {
    std::memset(bytes_.get(), 0, size_);
  }
  std::byte* data() { return bytes_.get(); }
  std::span<std::byte> span() { return {bytes_.get(), size_}; }

 private:
  size_t size_;
  hwy::AlignedFreeUniquePtr<std::byte[]> bytes_;
};

struct Case {
  MomentFormat format;
  DType gradient;
  DType copy;         // kF32: no copy.
  bool undo = false;  // Saves overwritten data, whose bytes count once.

  int64_t copy_bytes() const {
    return copy == DType::kF32 ? 0 : kElements * SizeInBytes(copy);
  }
  int64_t moment_bytes() const { return *MomentBytes(format, kElements); }
  int64_t moved_bytes() const {
    return kElements * (8 + SizeInBytes(gradient)) + 4 * moment_bytes() +
           copy_bytes() + undo_bytes();
  }
  int64_t undo_bytes() const {
    return undo ? kElements * 4 + 2 * moment_bytes() : 0;
  }
  std::string Name() const {
    return format.ToString() + "/" + std::string(DTypeName(gradient)) + "/" +
           (copy == DType::kF32 ? "none" : std::string(DTypeName(copy))) +
           (undo ? "/undo" : "");
  }
};

void Report(benchmark::State& state, double bandwidth, double triad,
            double bytes_per_element) {
  state.counters["GB/s"] = bandwidth / 1e9;
  state.counters["triad_GB/s"] = triad / 1e9;
  state.counters["share_of_triad"] = bandwidth / triad;
  state.counters["bytes_per_element"] = bytes_per_element;
}

// The bandwidth of the best call of `step`, and of the best triad before or
// after it.
template <class Step>
void Compare(benchmark::State& state, int threads, int64_t bytes,
             const Step& step) {
  double triad = MeasureTriad(threads, kTriadBytes, 5)->best();
  double best = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    step();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, static_cast<double>(bytes) / seconds.count());
  }
  triad = std::max(triad, MeasureTriad(threads, kTriadBytes, 5)->best());
  Report(state, best, triad,
         static_cast<double>(bytes) / static_cast<double>(kElements));
}

void BM_AdamW(benchmark::State& state, const Case& c) {
  const int threads = static_cast<int>(state.range(0));
  Memory parameter(kElements * 4), copy(c.copy_bytes());
  Memory gradient(kElements * SizeInBytes(c.gradient));
  Memory first(c.moment_bytes()), second(c.moment_bytes());
  Memory undo(c.undo_bytes());
  // Bits that are small numbers in every type.
  std::memset(gradient.data(), 0x35, gradient.span().size());
  const ParameterRange range = {
      .parameter = TypedSpan(parameter.data(), DType::kF32, kElements),
      .gradient = ConstTypedSpan(gradient.data(), c.gradient, kElements),
      .first = *MomentSpan::Over(c.format, kElements, first.span()),
      .second = *MomentSpan::Over(c.format, kElements, second.span()),
      .copy = c.copy == DType::kF32 ? TypedSpan()
                                    : TypedSpan(copy.data(), c.copy, kElements),
      .undo = undo.span(),
  };
  const auto adamw = *AdamW::Create({.threads = threads});
  int64_t step = 0;
  Compare(state, threads, c.moved_bytes(), [&] {
    benchmark::DoNotOptimize(adamw->Step(++step, {}, {&range, 1}).ok());
  });
}

void BM_Statistics(benchmark::State& state, DType dtype) {
  const int threads = static_cast<int>(state.range(0));
  Memory gradient(kElements * SizeInBytes(dtype));
  std::memset(gradient.data(), 0x35, gradient.span().size());
  ThreadPool pool(threads);
  const ConstTypedSpan span(gradient.data(), dtype, kElements);
  Compare(state, threads, span.size_in_bytes(), [&] {
    benchmark::DoNotOptimize(MeasureGradient(span, pool)->sum_of_squares);
  });
}

int RegisterAll() {
  const auto add = [](const Case& c) {
    benchmark::RegisterBenchmark(
        ("AdamW/" + c.Name()).c_str(),
        [c](benchmark::State& state) { BM_AdamW(state, c); })
        ->Arg(1)
        ->Arg(2)
        ->Iterations(12)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const MomentFormat& format :
       {MomentFormat::F32(), MomentFormat::BF16(), MomentFormat::Blockwise8(),
        MomentFormat::Blockwise8(256)}) {
    for (DType copy : {DType::kF32, DType::kBF16, DType::kF16}) {
      add({format, DType::kF32, copy});
      if (copy == DType::kBF16) {
        add({format, DType::kF32, copy, /*undo=*/true});
      }
    }
    add({format, DType::kBF16, DType::kBF16});
  }
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    benchmark::RegisterBenchmark(
        ("Statistics/" + std::string(DTypeName(dtype))).c_str(),
        [dtype](benchmark::State& state) { BM_Statistics(state, dtype); })
        ->Arg(1)
        ->Arg(2)
        ->Iterations(12)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace tessera::offload
