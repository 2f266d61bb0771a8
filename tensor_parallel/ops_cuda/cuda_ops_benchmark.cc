// Rates of a GPU: memory copies, and products and attention in the shapes of
// models, relative to the peaks of the card (NVIDIA's data sheets). Attention
// is also measured with only cuDNN, without the conversions around it. Operands
// are random, because a GPU draws less power and is faster on constant
// operands.
//
//   cuda_ops_benchmark --json=rates.json
//
// The emulated build, with --host and a divisor, checks the program.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device/cuda_device.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cudnn_attention.h"
#include "tensor_parallel/ops_cuda/gemm.h"
#include "tensor_parallel/ops_cuda/scratch.h"
#ifdef TESSERA_CUDNN
#include "tensor_parallel/ops_cuda/cudnn_calls.h"
#include "tensor_parallel/ops_cuda/cudnn_graph.h"
#include "tensor_parallel/ops_cuda/cudnn_plans.h"
#endif

ABSL_FLAG(std::string, json, "", "file for the results in JSON; empty: none");
ABSL_FLAG(int, ordinal, 0, "number of the GPU");
ABSL_FLAG(bool, host, false,
          "measures the processor's memory and the emulated kernels");
ABSL_FLAG(int, divisor, 1, "divides all sizes but those of heads");
ABSL_FLAG(int, repetitions, 20, "timed calls of each operation");

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

struct Peaks {
  double flops = 989.5e12;    // bf16, dense; an H100's and an H200's.
  double bandwidth = 4.8e12;  // Bytes per second.
};

Peaks PeaksOf(std::string_view gpu) {
  Peaks peaks;
  if (absl::StrContains(gpu, "H100")) peaks.bandwidth = 3.35e12;
  return peaks;
}

// Pairs of bf16 between -1 and 1, each of which is an f32 of that range too.
std::vector<uint16_t> RandomValues() {
  std::mt19937 generator(1);
  std::vector<uint16_t> values(size_t{1} << 20);
  for (uint16_t& value : values) {
    const uint32_t random = generator();
    // Random sign and mantissa, with exponents of 1/2, 1/4 and 1/8.
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
                              buffers_.back().kind());
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

// Two products over half of the pairs; the gradient has five.
double CausalFlops(int64_t sequences, int64_t heads, int64_t tokens,
                   int64_t size) {
  return 2.0 * sequences * heads * tokens * tokens * size;
}

class Benchmark {
 public:
  Benchmark(Queue& queue, const Peaks& peaks) : queue_(queue), peaks_(peaks) {}

  // `call` enqueues `flops` floating-point operations on the queue's stream.
  absl::Status Measure(const std::string& name, double flops,
                       const std::function<absl::Status()>& call) {
    TESSERA_ASSIGN_OR_RETURN(const double seconds, SecondsOf([&] {
                               queue_.NoteEnqueued();
                               return call();
                             }));
    Report(name, seconds, "teraflops", flops / seconds / 1e12,
           flops / seconds / peaks_.flops);
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
           "gigabytes_per_second", rate / 1e9, rate / peaks_.bandwidth);
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
    const double flops = CausalFlops(sequences, heads, tokens, size);
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
    const int repetitions = absl::GetFlag(FLAGS_repetitions);
    for (int i = 0; i < repetitions; ++i) TESSERA_RETURN_IF_ERROR(call());
    TESSERA_RETURN_IF_ERROR(queue_.Synchronize());
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start;
    return elapsed.count() / repetitions;
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
  const Peaks peaks_;
  nlohmann::json results_ = nlohmann::json::array();
};

#ifdef TESSERA_CUDNN
// The arguments of cuDNN's plans in device memory of their own: bf16 tensors of
// [sequences, tokens, heads, size], packed.
class CudnnBuffers {
 public:
  CudnnBuffers(Queue& queue, const CudnnAttentionShape& shape)
      : tensors_(queue),
        queries_{shape.sequences, shape.queries, shape.heads, shape.head_size},
        keys_{shape.sequences, shape.keys, shape.kv_heads, shape.head_size},
        rows_{shape.sequences, shape.heads, shape.queries} {}
  CudnnBuffers(const CudnnBuffers&) = delete;  // Arguments point to members.
  CudnnBuffers& operator=(const CudnnBuffers&) = delete;

  absl::Status AddForward() {
    TESSERA_RETURN_IF_ERROR(Add(kCudnnQuery, DType::kBF16, queries_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnKey, DType::kBF16, keys_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnValue, DType::kBF16, keys_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnLogSumExp, DType::kF32, rows_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnOutput, DType::kBF16, queries_));
    arguments_.push_back({kCudnnScale, &scale_});
    arguments_.push_back({kCudnnMasked, &masked_});
    return absl::OkStatus();
  }
  // After AddForward.
  absl::Status AddBackward(bool deterministic) {
    arguments_.push_back({kCudnnOne, &one_});
    TESSERA_RETURN_IF_ERROR(Add(kCudnnOutputGradient, DType::kBF16, queries_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnQueryGradient, DType::kBF16, queries_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnKeyGradient, DType::kBF16, keys_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnValueGradient, DType::kBF16, keys_));
    TESSERA_RETURN_IF_ERROR(Add(kCudnnDots, DType::kF32, rows_));
    return deterministic ? absl::OkStatus()
                         : Add(kCudnnQueryF32, DType::kF32, queries_);
  }
  // For a plan.
  absl::StatusOr<void*> AddWorkspace(const CudnnPlan& plan) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView workspace,
        tensors_.Add(DType::kU8,
                     {std::max<int64_t>(plan.workspace_bytes(), 1)}));
    return workspace.data();
  }

  std::span<const CudnnArgument> arguments() const { return arguments_; }

 private:
  absl::Status Add(int64_t id, DType dtype, const std::vector<int64_t>& sizes) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView tensor,
                             tensors_.Add(dtype, sizes));
    arguments_.push_back({id, tensor.data()});
    return absl::OkStatus();
  }

  const float scale_ = 0.1F, one_ = 1,
              masked_ = -std::numeric_limits<float>::infinity();
  Tensors tensors_;
  const std::vector<int64_t> queries_, keys_, rows_;
  std::vector<CudnnArgument> arguments_;
};

using CudnnHandle = std::unique_ptr<cudnnContext, void (*)(cudnnHandle_t)>;

absl::StatusOr<CudnnHandle> HandleFor(Queue& queue) {
  cudnnHandle_t raw = nullptr;
  TESSERA_RETURN_IF_ERROR(CudnnStatus(cudnnCreate(&raw), "a handle of cuDNN"));
  CudnnHandle handle(raw, [](cudnnHandle_t h) { cudnnDestroy(h); });
  TESSERA_RETURN_IF_ERROR(CudnnStatus(
      cudnnSetStream(raw, static_cast<cudaStream_t>(queue.native_handle())),
      "the stream of cuDNN"));
  return handle;
}

absl::Status MeasureCudnnAlone(Queue& queue, const std::string& name,
                               const CudnnAttentionShape& shape,
                               bool deterministic, Benchmark& benchmark) {
  TESSERA_ASSIGN_OR_RETURN(
      const CudnnDescriptor device,
      CudnnPropertiesOfDevice(queue.device().memory()->device_ordinal()));
  const auto strides = CudnnAttentionStrides::Packed(shape);
  TESSERA_ASSIGN_OR_RETURN(const CudnnHandle handle, HandleFor(queue));
  CudnnBuffers buffers(queue, shape);
  const double flops =
      CausalFlops(shape.sequences, shape.heads, shape.queries, shape.head_size);
  const auto measure = [&](const CudnnPlan& plan, const std::string& way,
                           double operations) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(void* const workspace, buffers.AddWorkspace(plan));
    return benchmark.Measure(name + way, operations, [&] {
      return plan.Run(handle.get(), buffers.arguments(), workspace);
    });
  };
  TESSERA_ASSIGN_OR_RETURN(const CudnnPlan forward,
                           BuildForwardPlan(shape, strides, device));
  TESSERA_RETURN_IF_ERROR(buffers.AddForward());
  TESSERA_RETURN_IF_ERROR(measure(forward, " forward", flops));
  TESSERA_ASSIGN_OR_RETURN(
      const CudnnPlan backward,
      BuildBackwardPlan(shape, strides, deterministic, device));
  TESSERA_RETURN_IF_ERROR(buffers.AddBackward(deterministic));
  return measure(backward, " backward", 2.5 * flops);
}
#endif

// --divisor applied to a size that is a multiple of it.
int64_t Sized(int64_t size) { return size / absl::GetFlag(FLAGS_divisor); }

absl::Status MeasureGemms(Queue& queue, Benchmark& benchmark) {
  struct Model {
    std::string name;
    int64_t tokens, hidden, kv, inner, vocabulary;
  };
  TESSERA_ASSIGN_OR_RETURN(const auto gemm, CudaGemm::Create(queue));
  for (Model m : {Model{"8B", 8192, 4096, 1024, 14336, 128256},
                  Model{"1.2B", 16384, 2048, 512, 8192, 128256}}) {
    for (int64_t* const size :
         {&m.tokens, &m.hidden, &m.kv, &m.inner, &m.vocabulary}) {
      *size = Sized(*size);
    }
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
    struct Shape {
      std::string model;
      int64_t sequences, head_size;
    };
    for (const Shape& shape : {Shape{"8B", 2, 128}, Shape{"1.2B", 4, 64}}) {
      TESSERA_RETURN_IF_ERROR(benchmark.Attention(
          *attention, absl::StrCat(shape.model, " attention", suffix),
          shape.sequences, Sized(4096), 32, 8, shape.head_size));
#ifdef TESSERA_CUDNN
      TESSERA_RETURN_IF_ERROR(MeasureCudnnAlone(
          queue, absl::StrCat(shape.model, " cuDNN", suffix),
          {shape.sequences, Sized(4096), Sized(4096), 32, 8, shape.head_size,
           /*causal=*/true},
          deterministic, benchmark));
#endif
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Device>> MakeDevice(Peaks& peaks) {
  if (absl::GetFlag(FLAGS_host)) return std::make_shared<HostDevice>();
  const int ordinal = absl::GetFlag(FLAGS_ordinal);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> found,
                           FindCudaDevices());
  if (ordinal >= 0 && static_cast<size_t>(ordinal) < found.size()) {
    peaks = PeaksOf(found[static_cast<size_t>(ordinal)].properties.name);
  }
  return CudaDevice::Create({.ordinal = ordinal});
}

absl::Status Main() {
  for (const int number :
       {absl::GetFlag(FLAGS_divisor), absl::GetFlag(FLAGS_repetitions)}) {
    if (number > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--divisor or --repetitions is ", number,
                     "; both must be positive, such as --repetitions=20"));
  }
  Peaks peaks;
  TESSERA_ASSIGN_OR_RETURN(const auto device, MakeDevice(peaks));
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device->CreateQueue("benchmark"));
  Benchmark benchmark(*queue, peaks);
  TESSERA_RETURN_IF_ERROR(benchmark.Copy(Sized(int64_t{1} << 30)));
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
