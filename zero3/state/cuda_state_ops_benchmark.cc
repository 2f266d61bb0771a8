// Steps and statistics on a GPU, compared with its memory bandwidth.
//
// GB/s: the bytes that an operation must read and write (once each) divided by
// its time, the mean over kRepeats operations that are enqueued together.
// share_of_peak: that divided by the 4.8 TB/s of an H200 (HBM3e, NVIDIA's data
// sheet); a copy reaches 0.9. Names: moments, gradient, copy.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda_device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "benchmark/benchmark.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/state/cuda_state_ops.h"

namespace tessera::zero3 {
namespace {

constexpr int64_t kElements = int64_t{128} << 20;
constexpr int kRepeats = 20;
constexpr double kPeak = 4.8e12;

using offload::MomentFormat;

class Gpu {
 public:
  static absl::StatusOr<Gpu> Create() {
    Gpu gpu;
    TESSERA_ASSIGN_OR_RETURN(gpu.device_, CudaDevice::Create());
    TESSERA_ASSIGN_OR_RETURN(gpu.queue_, gpu.device_->CreateQueue("compute"));
    TESSERA_ASSIGN_OR_RETURN(gpu.ops_, native::CudaStateOps(*gpu.queue_));
    return gpu;
  }

  // Bytes that represent small numbers in every type.
  absl::StatusOr<Buffer> Memory(int64_t bytes, std::byte value) {
    TESSERA_ASSIGN_OR_RETURN(
        Buffer memory,
        Buffer::Allocate(device_->memory(), static_cast<size_t>(bytes)));
    TESSERA_RETURN_IF_ERROR(queue_->Fill(value, memory.bytes()));
    return memory;
  }

  // Measures `work`, which moves `bytes`.
  template <typename Work>
  absl::Status Measure(benchmark::State& state, int64_t bytes,
                       const Work& work) {
    TESSERA_RETURN_IF_ERROR(work(*ops_));
    TESSERA_RETURN_IF_ERROR(queue_->Synchronize());
    double best = 0;
    for (auto _ : state) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kRepeats; ++i) {
        TESSERA_RETURN_IF_ERROR(work(*ops_));
      }
      TESSERA_RETURN_IF_ERROR(queue_->Synchronize());
      const std::chrono::duration<double> seconds =
          std::chrono::steady_clock::now() - start;
      best = std::max(best,
                      kRepeats * static_cast<double>(bytes) / seconds.count());
    }
    state.counters["GB/s"] = best / 1e9;
    state.counters["share_of_peak"] = best / kPeak;
    state.counters["bytes_per_element"] =
        static_cast<double>(bytes) / static_cast<double>(kElements);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<Queue> queue_;
  std::shared_ptr<StateOps> ops_;
};

void Skip(benchmark::State& state, const absl::Status& status) {
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

struct Case {
  MomentFormat format;
  DType gradient = DType::kF32;
};

absl::Status AdamW(benchmark::State& state, const Case& c) {
  TESSERA_ASSIGN_OR_RETURN(Gpu gpu, Gpu::Create());
  constexpr std::byte kNumber{0x35};
  TESSERA_ASSIGN_OR_RETURN(const int64_t moment_bytes,
                           offload::MomentBytes(c.format, kElements));
  const int64_t gradient_bytes = kElements * SizeInBytes(c.gradient);
  TESSERA_ASSIGN_OR_RETURN(Buffer parameter,
                           gpu.Memory(4 * kElements, kNumber));
  TESSERA_ASSIGN_OR_RETURN(Buffer gradient,
                           gpu.Memory(gradient_bytes, kNumber));
  TESSERA_ASSIGN_OR_RETURN(Buffer first, gpu.Memory(moment_bytes, {}));
  TESSERA_ASSIGN_OR_RETURN(Buffer second, gpu.Memory(moment_bytes, {}));
  TESSERA_ASSIGN_OR_RETURN(Buffer copy, gpu.Memory(2 * kElements, {}));
  offload::ParameterRange range = {
      .parameter = {parameter.data(), DType::kF32, kElements},
      .gradient = {gradient.data(), c.gradient, kElements},
      .copy = {copy.data(), DType::kBF16, kElements}};
  TESSERA_ASSIGN_OR_RETURN(
      range.first,
      offload::MomentSpan::Over(c.format, kElements, first.bytes()));
  TESSERA_ASSIGN_OR_RETURN(
      range.second,
      offload::MomentSpan::Over(c.format, kElements, second.bytes()));
  TESSERA_ASSIGN_OR_RETURN(const auto adamw, offload::AdamW::Create({}));
  int64_t step = 0;
  return gpu.Measure(
      state, 10 * kElements + gradient_bytes + 4 * moment_bytes,
      [&](StateOps& ops) { return ops.Step(*adamw, ++step, {}, range); });
}

absl::Status Statistics(benchmark::State& state, DType dtype) {
  TESSERA_ASSIGN_OR_RETURN(Gpu gpu, Gpu::Create());
  const int64_t bytes = kElements * SizeInBytes(dtype);
  TESSERA_ASSIGN_OR_RETURN(Buffer gradient, gpu.Memory(bytes, std::byte{0x35}));
  TESSERA_ASSIGN_OR_RETURN(Buffer result,
                           gpu.Memory(sizeof(offload::GradientStatistics), {}));
  return gpu.Measure(state, bytes, [&](StateOps& ops) {
    return ops.Run(
        op::Measure{{gradient.data(), dtype, kElements}, result.bytes()});
  });
}

int RegisterAll() {
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(
        name.c_str(),
        [run](benchmark::State& state) { Skip(state, run(state)); })
        ->Iterations(5)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const MomentFormat& format :
       {MomentFormat::F32(), MomentFormat::BF16(), MomentFormat::Blockwise8(),
        MomentFormat::Blockwise8(256)}) {
    for (const DType gradient : {DType::kF32, DType::kBF16}) {
      add(absl::StrCat("AdamW/", format.ToString(), "/", DTypeName(gradient),
                       "/bf16"),
          [=](benchmark::State& state) {
            return AdamW(state, {format, gradient});
          });
    }
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    add(absl::StrCat("Statistics/", DTypeName(dtype)),
        [=](benchmark::State& state) { return Statistics(state, dtype); });
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace tessera::zero3
