// Rates of a GPU: copies of its memory, and products and attention in the
// shapes of models, beside the peaks of an H200 (NVIDIA's data sheet). Operands
// are random: a GPU draws less power and is faster on constant ones.
//
//   cuda_ops_benchmark --json=rates.json

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device/cuda_device.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cudnn_attention.h"
#include "tensor_parallel/ops_cuda/gemm.h"
#include "tensor_parallel/ops_cuda/scratch.h"

ABSL_FLAG(std::string, json, "", "file for the results in JSON; empty: none");
ABSL_FLAG(int, device, 0, "ordinal of the GPU");

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

constexpr double kPeakFlops = 989.5e12;    // bf16, dense.
constexpr double kPeakBandwidth = 4.8e12;  // Bytes per second.
constexpr int kRepetitions = 20;

// Pairs of bf16 between -1 and 1, each of which is an f32 of that range too.
std::vector<uint16_t> RandomValues() {
  std::mt19937 generator(1);
  std::vector<uint16_t> values(size_t{1} << 20);
  for (uint16_t& value : values) {
    const uint32_t random = generator();
    // Sign and mantissa at random, exponents of 1/2, 1/4 and 1/8.
    value = static_cast<uint16_t>((random & 0x807f) |
                                  ((124 + (random >> 16) % 3) << 7));
  }
  return values;
}

// Tensors of one measurement, filled with random numbers.
class Tensors {
 public:
  explicit Tensors(Queue& queue) : queue_(queue) {}

  absl::StatusOr<TensorView> Add(DType dtype,
                                 const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    TESSERA_ASSIGN_OR_RETURN(
        Buffer buffer,
        Buffer::Allocate(queue_.device().memory(),
                         static_cast<size_t>(elements * SizeInBytes(dtype)),
                         256));
    TESSERA_RETURN_IF_ERROR(FillWithRandom(buffer.bytes()));
    buffers_.push_back(std::move(buffer));
    return TensorView::Create(buffers_.back().bytes(), dtype, shape,
                              MemoryKind::kDevice);
  }

 private:
  absl::Status FillWithRandom(std::span<std::byte> target) {
    static const auto& values = *new std::vector<uint16_t>(RandomValues());
    const auto source = std::as_bytes(std::span(values));
    while (!target.empty()) {
      const size_t size = std::min(source.size(), target.size());
      TESSERA_RETURN_IF_ERROR(
          queue_.Copy(source.first(size), target.first(size)));
      target = target.subspan(size);
    }
    return queue_.Synchronize();
  }

  Queue& queue_;
  std::vector<Buffer> buffers_;
};

class Benchmark {
 public:
  explicit Benchmark(Queue& queue) : queue_(queue) {}

  // `call` enqueues work of `flops` floating-point operations.
  absl::Status Measure(const std::string& name, double flops,
                       const std::function<absl::Status()>& call) {
    TESSERA_ASSIGN_OR_RETURN(const double seconds, SecondsOf(call));
    Report(name, seconds, "teraflops", flops / seconds / 1e12,
           flops / seconds / kPeakFlops);
    return absl::OkStatus();
  }

  // Bytes read and written.
  absl::Status Copy(int64_t bytes) {
    Tensors tensors(queue_);
    TESSERA_ASSIGN_OR_RETURN(const TensorView source,
                             tensors.Add(DType::kU8, {bytes}));
    TESSERA_ASSIGN_OR_RETURN(const TensorView target,
                             tensors.Add(DType::kU8, {bytes}));
    const auto size = static_cast<size_t>(bytes);
    TESSERA_ASSIGN_OR_RETURN(
        const double seconds, SecondsOf([&] {
          return queue_.Copy({source.data(), size}, {target.data(), size});
        }));
    const double rate = 2 * static_cast<double>(bytes) / seconds;
    Report(absl::StrCat("copy of ", bytes >> 20, " MiB"), seconds,
           "gigabytes_per_second", rate / 1e9, rate / kPeakBandwidth);
    return absl::OkStatus();
  }

  absl::Status Gemm(CudaGemm& gemm, const std::string& name,
                    const GemmOptions& options, DType result, int64_t m,
                    int64_t n, int64_t k) {
    Tensors tensors(queue_);
    using Shape = std::vector<int64_t>;
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView a,
        tensors.Add(DType::kBF16,
                    options.transpose_a ? Shape{k, m} : Shape{m, k}));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView b,
        tensors.Add(DType::kBF16,
                    options.transpose_b ? Shape{n, k} : Shape{k, n}));
    TESSERA_ASSIGN_OR_RETURN(const TensorView c, tensors.Add(result, {m, n}));
    return Measure(
        absl::StrCat(name, " ", m, "x", n, "x", k, " to ", DTypeName(result)),
        2.0 * m * n * k,
        [&] { return gemm.Run(queue_.native_handle(), options, a, b, c); });
  }

  // y = x w^T, dx = dy w, dw += dy^T x.
  absl::Status Linear(CudaGemm& gemm, const std::string& name, int64_t tokens,
                      int64_t out, int64_t in) {
    TESSERA_RETURN_IF_ERROR(Gemm(gemm, name + " forward", {.transpose_b = true},
                                 DType::kBF16, tokens, out, in));
    TESSERA_RETURN_IF_ERROR(
        Gemm(gemm, name + " dgrad", {}, DType::kBF16, tokens, in, out));
    return Gemm(gemm, name + " wgrad", {.transpose_a = true, .beta = 1},
                DType::kF32, out, in, tokens);
  }

  absl::Status Attention(CudnnAttention& attention, const std::string& name,
                         int64_t sequences, int64_t tokens, int64_t heads,
                         int64_t kv_heads, int64_t size) {
    Tensors tensors(queue_);
    const std::vector<int64_t> query = {sequences, tokens, heads, size},
                               key = {sequences, tokens, kv_heads, size},
                               row = {sequences, tokens, heads};
    constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;
    TESSERA_ASSIGN_OR_RETURN(const TensorView q, tensors.Add(kBF16, query));
    TESSERA_ASSIGN_OR_RETURN(const TensorView k, tensors.Add(kBF16, key));
    TESSERA_ASSIGN_OR_RETURN(const TensorView v, tensors.Add(kBF16, key));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dy, tensors.Add(kBF16, query));
    TESSERA_ASSIGN_OR_RETURN(const TensorView o, tensors.Add(kF32, query));
    TESSERA_ASSIGN_OR_RETURN(const TensorView log, tensors.Add(kF32, row));
    TESSERA_ASSIGN_OR_RETURN(const TensorView delta, tensors.Add(kF32, row));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dq, tensors.Add(kF32, query));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dk, tensors.Add(kF32, key));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dv, tensors.Add(kF32, key));
    const AttentionBlock block = {q, k, v, BlockKind::kCausal, 0.1};
    // Two products over half of the pairs; the gradient has five.
    const double flops = 2.0 * sequences * heads * tokens * tokens * size;
    TESSERA_RETURN_IF_ERROR(Measure(name + " forward", flops, [&] {
      return attention.Attend(queue_.native_handle(), block, {o, log});
    }));
    return Measure(name + " backward", 2.5 * flops, [&] {
      return attention.AttendGradient(queue_.native_handle(), block,
                                      {dy, o, log, delta, dq, dk, dv});
    });
  }

  const nlohmann::json& results() const { return results_; }

 private:
  // The mean time of a call.
  absl::StatusOr<double> SecondsOf(const std::function<absl::Status()>& call) {
    TESSERA_RETURN_IF_ERROR(call());
    TESSERA_RETURN_IF_ERROR(queue_.Synchronize());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepetitions; ++i) TESSERA_RETURN_IF_ERROR(call());
    TESSERA_RETURN_IF_ERROR(queue_.Synchronize());
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start;
    return elapsed.count() / kRepetitions;
  }

  void Report(const std::string& name, double seconds, const std::string& unit,
              double rate, double share) {
    std::cout << absl::StrFormat("%-46s %9.1f us %7.1f %s %5.1f %%\n", name,
                                 seconds * 1e6, rate, unit, 100 * share)
              << std::flush;
    results_.push_back({{"name", name},
                        {"seconds", seconds},
                        {unit, rate},
                        {"share_of_peak", share}});
  }

  Queue& queue_;
  nlohmann::json results_ = nlohmann::json::array();
};

absl::Status MeasureGemms(Queue& queue, Benchmark& benchmark) {
  struct Model {
    std::string name;
    int64_t tokens, hidden, kv, inner, vocabulary;
  };
  TESSERA_ASSIGN_OR_RETURN(const auto gemm, CudaGemm::Create(queue));
  for (const Model& m : {Model{"8B", 8192, 4096, 1024, 14336, 128256},
                         Model{"1.2B", 16384, 2048, 512, 8192, 128256}}) {
    TESSERA_RETURN_IF_ERROR(benchmark.Linear(*gemm, m.name + " qkv", m.tokens,
                                             m.hidden + 2 * m.kv, m.hidden));
    TESSERA_RETURN_IF_ERROR(benchmark.Linear(*gemm, m.name + " output",
                                             m.tokens, m.hidden, m.hidden));
    TESSERA_RETURN_IF_ERROR(benchmark.Linear(*gemm, m.name + " gate_up",
                                             m.tokens, 2 * m.inner, m.hidden));
    TESSERA_RETURN_IF_ERROR(
        benchmark.Linear(*gemm, m.name + " down", m.tokens, m.hidden, m.inner));
    TESSERA_RETURN_IF_ERROR(benchmark.Linear(*gemm, m.name + " head", m.tokens,
                                             m.vocabulary, m.hidden));
  }
  return absl::OkStatus();
}

absl::Status MeasureAttention(Queue& queue, Benchmark& benchmark) {
  Scratch scratch(queue.device().memory(),
                  [&queue] { return queue.Synchronize(); });
  for (const bool deterministic : {false, true}) {
    TESSERA_ASSIGN_OR_RETURN(
        const auto attention,
        CreateCudnnAttention(queue, {.deterministic = deterministic}, scratch));
    if (attention == nullptr) {
      std::cout << "attention: this build has no cuDNN\n";
      return absl::OkStatus();
    }
    const std::string suffix = deterministic ? ", deterministic" : "";
    TESSERA_RETURN_IF_ERROR(benchmark.Attention(
        *attention, absl::StrCat("8B attention", suffix), 2, 4096, 32, 8, 128));
    TESSERA_RETURN_IF_ERROR(
        benchmark.Attention(*attention, absl::StrCat("1.2B attention", suffix),
                            4, 4096, 32, 8, 64));
  }
  return absl::OkStatus();
}

absl::Status Main() {
  TESSERA_ASSIGN_OR_RETURN(
      const auto device,
      CudaDevice::Create({.ordinal = absl::GetFlag(FLAGS_device)}));
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device->CreateQueue("benchmark"));
  Benchmark benchmark(*queue);
  TESSERA_RETURN_IF_ERROR(benchmark.Copy(int64_t{1} << 30));
  TESSERA_RETURN_IF_ERROR(MeasureGemms(*queue, benchmark));
  TESSERA_RETURN_IF_ERROR(MeasureAttention(*queue, benchmark));
  const std::string path = absl::GetFlag(FLAGS_json);
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << benchmark.results().dump(2) << "\n";
  file.close();
  return file ? absl::OkStatus()
              : absl::UnavailableError(absl::StrCat(
                    "--json=", path, ": the file cannot be written"));
}

}  // namespace
}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = tessera::tensor_parallel::TESSERA_KERNELS::Main();
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
