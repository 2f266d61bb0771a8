#include "tools/plan/device_rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/arithmetic.h"

namespace tessera::plan {
namespace {

using tensor_parallel::Recompute;
using train::StageShapes;

constexpr int64_t kTileM = 128;
constexpr int64_t kTileN = 256;
// The prologue of a tile, as additional steps along the inner dimension.
constexpr double kPrologue = 192;

// The rate of attention with heads of 128 in bf16, as a share of 989.5 Tflop/s,
// at lengths of 2048, 4096, 8192 and 16384.
constexpr std::array<double, 4> kForward = {0.489, 0.597, 0.651, 0.680};
constexpr std::array<double, 4> kBackward = {0.374, 0.479, 0.547, 0.585};
// The factor for heads of 64, which keep the tensor cores busy for less of the
// time.
constexpr double kSmallHeads = 0.66;

// Interpolates over the logarithm of the length; proportional to the length
// below 2048.
double AttentionShare(const std::array<double, 4>& shares, double length) {
  const double place = std::log2(std::max(length, 1.0) / 2048);
  if (place < 0) return std::max(shares[0] * length / 2048, 0.02);
  const auto below = std::min(static_cast<size_t>(place), shares.size() - 2);
  const double part = std::min(place - static_cast<double>(below), 1.0);
  return shares[below] + part * (shares[below + 1] - shares[below]);
}

// `count` equal products in a stage, of `rows` rows with weights [n, k].
struct Product {
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t count = 0;
  bool is_down = false;  // The last product of a layer.
};

std::vector<Product> ProductsOf(const StageShapes& s, int64_t tokens) {
  const train::MixtureShapes& mixture = s.mixture;
  std::vector<Product> products = {{tokens, s.qkv, s.hidden, s.layers},
                                   {tokens, s.hidden, s.query, s.layers}};
  const auto add_mlp = [&](int64_t rows, int64_t units, int64_t count) {
    if (units == 0 || count == 0) return;
    products.push_back({rows, 2 * units, s.hidden, count});
    products.push_back({rows, s.hidden, units, count, /*is_down=*/true});
  };
  add_mlp(tokens, s.dense_units, s.layers - mixture.layers);
  if (mixture.layers == 0) return products;
  const int64_t experts = mixture.experts / mixture.ranks;
  products.push_back({tokens, mixture.experts, s.hidden, mixture.layers});
  add_mlp(CeilDiv(tokens * mixture.per_token, experts), mixture.units,
          experts * mixture.layers);
  add_mlp(tokens, mixture.shared, mixture.layers);
  return products;
}

// The elements per token that the operations between the products of a layer
// read and write: norms, residuals, rotation and SwiGLU.
double ForwardStreams(const StageShapes& s) {
  return static_cast<double>(10 * s.hidden + 2 * s.qkv + 3 * s.intermediate);
}
double BackwardStreams(const StageShapes& s) {
  return static_cast<double>(14 * s.hidden + 2 * s.qkv + 5 * s.intermediate);
}

}  // namespace

DeviceRates DeviceRates::Flat(double flops, double efficiency) {
  DeviceRates rates;
  rates.is_flat_ = true;
  rates.efficiency_ = efficiency;
  rates.gpu_.flops = flops;
  return rates;
}

DeviceRates DeviceRates::Gpu(const GpuModel& gpu, DType dtype) {
  DeviceRates rates;
  rates.gpu_ = gpu;
  rates.dtype_ = dtype;
  return rates;
}

double DeviceRates::ProductSeconds(int64_t m, int64_t n, int64_t k) const {
  const double operations = 2.0 * static_cast<double>(m) *
                            static_cast<double>(n) * static_cast<double>(k);
  if (is_flat_) return operations / (gpu_.flops * efficiency_);
  if (operations == 0) return 0;
  const int64_t tiles = CeilDiv(m, kTileM) * CeilDiv(n, kTileN);
  const int64_t waves = CeilDiv(tiles, gpu_.multiprocessors);
  const double padded = static_cast<double>(waves * gpu_.multiprocessors) * 2 *
                        kTileM * kTileN * (static_cast<double>(k) + kPrologue);
  const auto elements = static_cast<double>(m * k + k * n + m * n);
  return std::max(padded / (gpu_.flops * gpu_.product_share),
                  StreamSeconds(elements *
                                static_cast<double>(SizeInBytes(dtype_)))) +
         gpu_.launch_seconds;
}

double DeviceRates::AttentionSeconds(double operations, int64_t length,
                                     int64_t head_size,
                                     bool is_backward) const {
  if (is_flat_) return operations / (gpu_.flops * efficiency_);
  double share = AttentionShare(is_backward ? kBackward : kForward,
                                static_cast<double>(length));
  if (head_size < 128) share *= kSmallHeads;
  return operations / (gpu_.flops * share);
}

double DeviceRates::StreamSeconds(double bytes) const {
  return is_flat_ ? 0 : bytes / (gpu_.memory_bandwidth * gpu_.stream_share);
}

PassSeconds DeviceRates::SecondsOf(const StageShapes& shapes,
                                   const train::RunOptions& options) const {
  const train::StageWork work = train::StageWorkOf(shapes, options);
  PassSeconds seconds;
  if (is_flat_) {
    const double rate = gpu_.flops * efficiency_;
    seconds.forward = work.forward / rate;
    seconds.attention = work.attention / rate;
    seconds.backward_input = work.backward_input / rate;
    seconds.backward_attention = 2 * work.attention / rate;
    seconds.backward_weight = work.backward_weight / rate;
    return seconds;
  }
  const int64_t tokens =
      CeilDiv(options.micro_batch * options.length, options.mesh.cp);
  const auto layers = static_cast<double>(shapes.layers);
  const auto size = static_cast<double>(SizeInBytes(dtype_));
  const auto rows = static_cast<double>(shapes.rows);
  double forward = layers * StreamSeconds(ForwardStreams(shapes) * rows * size);
  double input = layers * StreamSeconds(BackwardStreams(shapes) * rows * size);
  double weight = 0, down = 0;
  for (const Product& p : ProductsOf(shapes, tokens)) {
    const auto count = static_cast<double>(p.count);
    const double product = count * ProductSeconds(p.rows, p.n, p.k);
    forward += product;
    if (p.is_down) down += product;
    input += count * ProductSeconds(p.rows, p.k, p.n);
    weight += count * ProductSeconds(p.n, p.k, p.rows);
  }
  const auto attention = [&](double operations, bool is_backward) {
    return AttentionSeconds(operations, options.length, shapes.head_size,
                            is_backward);
  };
  seconds.attention = attention(work.attention, false);
  seconds.backward_attention = attention(2 * work.attention, true);
  seconds.forward = forward + seconds.attention;
  seconds.backward_input = input + seconds.backward_attention;
  seconds.backward_weight = weight;
  if (shapes.recompute == Recompute::kSelective) {
    seconds.backward_input += seconds.attention;
  }
  if (shapes.recompute == Recompute::kFull) {
    seconds.backward_input += seconds.forward - down;
  }
  if (shapes.is_last) {
    const double logits = static_cast<double>(tokens) *
                          static_cast<double>(shapes.vocabulary) * size;
    seconds.forward +=
        ProductSeconds(tokens, shapes.vocabulary, shapes.hidden) +
        StreamSeconds(3 * logits);
    seconds.backward_input +=
        ProductSeconds(tokens, shapes.hidden, shapes.vocabulary) +
        StreamSeconds(2 * logits);
    seconds.backward_weight +=
        ProductSeconds(shapes.vocabulary, shapes.hidden, tokens);
  }
  return seconds;
}

std::string DeviceRates::Describe() const {
  if (is_flat_) {
    return absl::StrFormat(
        "the peak of a device is %.4g Tflop/s; products and attention reach "
        "%.0f %% of it, independent of size; norms, softmax and data are free",
        gpu_.flops / 1e12, 100 * efficiency_);
  }
  return absl::StrFormat(
      "the peak of a device is %.4g Tflop/s; products reach up to %.0f %% of "
      "it, by shape (tiles of %d x %d, %d multiprocessors); attention has "
      "cuDNN's rates by length; norms, activations and the loss take their "
      "bytes at %.2g TB/s",
      gpu_.flops / 1e12, 100 * gpu_.product_share, kTileM, kTileN,
      gpu_.multiprocessors, gpu_.memory_bandwidth * gpu_.stream_share / 1e12);
}

}  // namespace tessera::plan
