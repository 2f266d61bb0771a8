#include "pipeline/execute/testing/layer_stack.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

// In [-1, 1), the same on every machine.
double ValueAt(int64_t what, int64_t a, int64_t b) {
  uint64_t x = static_cast<uint64_t>(what) << 48 ^
               static_cast<uint64_t>(a) << 24 ^ static_cast<uint64_t>(b);
  x = (x + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<double>((x ^ x >> 29) >> 11) * 0x1p-52 - 1;
}

enum What : int64_t { kWeight, kBias, kInput, kTarget };

template <typename T>
std::vector<T> Values(What what, int64_t a, int64_t count) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(ValueAt(what, a, i)));
  }
  return values;
}

template <typename T>
Layer<T> MakeLayer(const StackShape& shape, size_t at) {
  Layer<T> layer;
  const int64_t in = shape.widths[at];
  const int64_t out = shape.widths[at + 1];
  layer.weight = Values<T>(kWeight, static_cast<int64_t>(at), in * out);
  layer.bias = Values<T>(kBias, static_cast<int64_t>(at), out);
  layer.weight_gradient.resize(layer.weight.size());
  layer.bias_gradient.resize(layer.bias.size());
  return layer;
}

template <typename T>
std::vector<T> InputOf(const StackShape& shape, int64_t microbatch) {
  return Values<T>(kInput, microbatch, shape.rows * shape.widths.front());
}

// y = tanh(x W + b).
template <typename T>
void Apply(const Layer<T>& layer, std::span<const T> x, std::span<T> y) {
  const size_t out = layer.bias.size();
  const size_t in = layer.weight.size() / out;
  for (size_t row = 0; row < y.size() / out; ++row) {
    for (size_t j = 0; j < out; ++j) {
      T sum = layer.bias[j];
      for (size_t i = 0; i < in; ++i) {
        sum += x[row * in + i] * layer.weight[i * out + j];
      }
      y[row * out + j] = std::tanh(sum);
    }
  }
}

template <typename T>
double LossOf(int64_t microbatch, std::span<const T> y) {
  const auto target =
      Values<T>(kTarget, microbatch, static_cast<int64_t>(y.size()));
  double loss = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double off = static_cast<double>(y[i] - target[i]);
    loss += off * off / 2;
  }
  return loss;
}

template <typename T>
std::vector<T> LossGradient(int64_t microbatch, std::span<const T> y,
                            double scale) {
  auto gradient =
      Values<T>(kTarget, microbatch, static_cast<int64_t>(y.size()));
  for (size_t i = 0; i < y.size(); ++i) {
    gradient[i] = (y[i] - gradient[i]) * static_cast<T>(scale);
  }
  return gradient;
}

// The gradient of tanh's input: dy (1 - y^2).
template <typename T>
std::vector<T> ThroughTanh(std::span<const T> y, std::span<const T> dy) {
  std::vector<T> gradient(y.size());
  for (size_t i = 0; i < y.size(); ++i) gradient[i] = dy[i] * (1 - y[i] * y[i]);
  return gradient;
}

// dx = g W^T.
template <typename T>
void InputGradient(const Layer<T>& layer, std::span<const T> g,
                   std::span<T> dx) {
  const size_t out = layer.bias.size();
  const size_t in = layer.weight.size() / out;
  for (size_t row = 0; row < g.size() / out; ++row) {
    for (size_t i = 0; i < in; ++i) {
      T sum = 0;
      for (size_t j = 0; j < out; ++j) {
        sum += g[row * out + j] * layer.weight[i * out + j];
      }
      dx[row * in + i] = sum;
    }
  }
}

// dW += x^T g, db += g.
template <typename T>
void AddWeightGradient(Layer<T>& layer, std::span<const T> x,
                       std::span<const T> g) {
  const size_t out = layer.bias.size();
  const size_t in = layer.weight.size() / out;
  for (size_t row = 0; row < g.size() / out; ++row) {
    for (size_t j = 0; j < out; ++j) {
      layer.bias_gradient[j] += g[row * out + j];
      for (size_t i = 0; i < in; ++i) {
        layer.weight_gradient[i * out + j] +=
            x[row * in + i] * g[row * out + j];
      }
    }
  }
}

template <typename T>
void Scale(Layer<T>& layer, double factor) {
  for (auto* values : {&layer.weight_gradient, &layer.bias_gradient}) {
    for (T& value : *values) value *= static_cast<T>(factor);
  }
}

}  // namespace

StackShape ShapeOf(int64_t layers, int64_t microbatches) {
  StackShape shape;
  for (int64_t i = 0; i <= layers; ++i) {
    shape.widths.push_back(3 + (i * 5 + 1) % 4);
  }
  shape.microbatches = microbatches;
  return shape;
}

template <typename T>
LayerStage<T>::LayerStage(const StackShape& shape, int32_t stage)
    : shape_(shape),
      stage_(stage),
      layer_(MakeLayer<T>(shape, static_cast<size_t>(stage))) {}

template <typename T>
absl::StatusOr<TensorSpec> LayerStage<T>::OutputSpec(const TensorSpec* input) {
  if (input != nullptr &&
      input->shape.back() != shape_.widths[static_cast<size_t>(stage_)]) {
    return absl::InvalidArgumentError("the input has another width");
  }
  return TensorSpec{
      kDTypeOf<T>,
      {shape_.rows, shape_.widths[static_cast<size_t>(stage_) + 1]}};
}

template <typename T>
absl::Status LayerStage<T>::Forward(const ForwardPass& pass) {
  Kept kept;
  std::span<const T> x;
  if (pass.input == nullptr) {
    kept.input = InputOf<T>(shape_, pass.microbatch);
    x = kept.input;
  } else {
    TESSERA_ASSIGN_OR_RETURN(x, pass.input->template AsSpan<T>());
    if (keeps_input) kept.input.assign(x.begin(), x.end());
  }
  kept.output.resize(static_cast<size_t>(shape_.rows) * layer_.bias.size());
  Apply<T>(layer_, x, kept.output);
  if (pass.output != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<T> y,
                             pass.output->template AsSpan<T>());
    std::copy(kept.output.begin(), kept.output.end(), y.begin());
  } else {
    TESSERA_ASSIGN_OR_RETURN(const std::span<double> loss,
                             pass.loss->AsSpan<double>());
    loss[0] = LossOf<T>(pass.microbatch, kept.output);
  }
  if (!kept_.try_emplace(pass.microbatch, std::move(kept)).second) {
    return absl::InternalError("the micro-batch was computed before");
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LayerStage<T>::BackwardInput(const BackwardPass& pass) {
  const auto kept = kept_.find(pass.microbatch);
  if (kept == kept_.end())
    return absl::InternalError("no forward was computed");
  const std::vector<T>& y = kept->second.output;
  if (pass.output_gradient == nullptr) {
    kept->second.gradient =
        ThroughTanh<T>(y, LossGradient<T>(pass.microbatch, y, pass.loss_scale));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const std::span<const T> dy,
                             pass.output_gradient->template AsSpan<T>());
    kept->second.gradient = ThroughTanh<T>(y, dy);
  }
  if (pass.input_gradient == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::span<T> dx,
                           pass.input_gradient->template AsSpan<T>());
  InputGradient<T>(layer_, kept->second.gradient, dx);
  return absl::OkStatus();
}

template <typename T>
absl::Status LayerStage<T>::BackwardWeight(const BackwardPass& pass) {
  if (pass.input_gradient != nullptr) {
    return absl::InternalError("an input gradient for the weights' half");
  }
  const auto kept = kept_.find(pass.microbatch);
  if (kept == kept_.end())
    return absl::InternalError("no forward was computed");
  std::span<const T> x = kept->second.input;
  if (pass.input != nullptr) {
    if (keeps_input) return absl::InternalError("an input that is kept");
    TESSERA_ASSIGN_OR_RETURN(x, pass.input->template AsSpan<T>());
  }
  std::vector<T> gradient = kept->second.gradient;
  if (pass.output_gradient != nullptr) {
    // The gradient that BackwardInput received is still valid.
    TESSERA_ASSIGN_OR_RETURN(const std::span<const T> dy,
                             pass.output_gradient->template AsSpan<T>());
    gradient = ThroughTanh<T>(kept->second.output, dy);
    if (gradient != kept->second.gradient) {
      return absl::InternalError("the gradient of the output has changed");
    }
  }
  AddWeightGradient<T>(layer_, x, gradient);
  return absl::OkStatus();
}

template <typename T>
void LayerStage<T>::Release(int32_t microbatch) {
  kept_.erase(microbatch);
}

template <typename T>
void LayerStage<T>::ZeroGradients() {
  Scale(layer_, 0);
}

template <typename T>
absl::StatusOr<std::vector<TensorView>> LayerStage<T>::Gradients() {
  std::vector<TensorView> views;
  for (auto* values : {&layer_.weight_gradient, &layer_.bias_gradient}) {
    const int64_t size = static_cast<int64_t>(values->size());
    TESSERA_ASSIGN_OR_RETURN(const TensorView view,
                             TensorView::Of(std::span(*values), {{size}}));
    views.push_back(view);
  }
  return views;
}

template <typename T>
absl::StatusOr<TensorView> LayerStage<T>::TiedGradient(std::string_view) {
  const int64_t size = static_cast<int64_t>(layer_.weight_gradient.size());
  return TensorView::Of(std::span(layer_.weight_gradient), {{size}});
}

template <typename T>
absl::Status LayerStage<T>::Unshard() {
  hooks_.push_back("unshard");
  return absl::OkStatus();
}
template <typename T>
absl::Status LayerStage<T>::Reshard() {
  hooks_.push_back("reshard");
  return absl::OkStatus();
}
template <typename T>
absl::Status LayerStage<T>::ReduceGradient() {
  hooks_.push_back("reduce");
  return absl::OkStatus();
}

template <typename T>
Reference<T> RunSequentially(const StackShape& shape) {
  Reference<T> reference;
  const auto layers = static_cast<size_t>(shape.layers());
  for (size_t at = 0; at < layers; ++at) {
    reference.layers.push_back(MakeLayer<T>(shape, at));
  }
  for (int64_t mb = 0; mb < shape.microbatches; ++mb) {
    std::vector<std::vector<T>> x = {InputOf<T>(shape, mb)};
    for (size_t at = 0; at < layers; ++at) {
      x.emplace_back(static_cast<size_t>(shape.rows * shape.widths[at + 1]));
      Apply<T>(reference.layers[at], x[at], x.back());
    }
    reference.losses.push_back(LossOf<T>(mb, x.back()));
    std::vector<T> dy = LossGradient<T>(mb, x.back(), 1);
    for (size_t at = layers; at-- > 0;) {
      const std::vector<T> g = ThroughTanh<T>(x[at + 1], dy);
      AddWeightGradient<T>(reference.layers[at], x[at], g);
      dy.resize(x[at].size());
      InputGradient<T>(reference.layers[at], g, dy);
    }
  }
  for (Layer<T>& layer : reference.layers) {
    Scale(layer, 1.0 / static_cast<double>(shape.microbatches));
  }
  reference.loss =
      std::accumulate(reference.losses.begin(), reference.losses.end(), 0.0) /
      static_cast<double>(shape.microbatches);
  return reference;
}

template <typename T>
double LargestError(const Layer<T>& layer, const Layer<T>& expected) {
  double largest = 0;
  double error = 0;
  const auto look = [&](const std::vector<T>& got, const std::vector<T>& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      const double off = std::abs(static_cast<double>(got[i] - want[i]));
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
      // Also true for NaN.
      if (!(off <= error)) error = off;
    }
  };
  look(layer.weight_gradient, expected.weight_gradient);
  look(layer.bias_gradient, expected.bias_gradient);
  return error / largest;
}

template class LayerStage<float>;
template class LayerStage<double>;
template Reference<float> RunSequentially(const StackShape&);
template Reference<double> RunSequentially(const StackShape&);
template double LargestError(const Layer<float>&, const Layer<float>&);
template double LargestError(const Layer<double>&, const Layer<double>&);

}  // namespace tessera::pipeline
