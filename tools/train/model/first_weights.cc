#include "tools/train/model/first_weights.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"

namespace tessera::train {
namespace {

// FNV-1a (Fowler, Noll, Vo), 64 bits: the same for ever.
uint64_t HashOf(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

constexpr int64_t kElementsAtATime = 4096;

// As many bytes as `count` elements of `elements` have, from `first` on.
std::span<std::byte> BytesOf(const TensorView& elements, int64_t first,
                             int64_t count) {
  const int64_t width = SizeInBytes(elements.dtype());
  return {elements.data() + first * width, static_cast<size_t>(count * width)};
}

}  // namespace

absl::Status FirstWeights::Draw(const tensor_parallel::Parameter& parameter,
                                int64_t begin, TensorView elements) const {
  std::string name = parameter.name();
  if (name.ends_with("norm.weight")) return Fill(elements, 1.0);
  if (options_.tied_embeddings && name == "head.output.weight") {
    name = "embedding.weight";
  }
  std::vector<double> drawn;
  std::vector<std::byte> rounded;
  const int64_t total = elements.element_count();
  for (int64_t first = 0; first < total; first += kElementsAtATime) {
    const int64_t count = std::min(kElementsAtATime, total - first);
    drawn.resize(static_cast<size_t>(count));
    parameter.DrawNormals({.seed = options_.seed, .stream = HashOf(name)},
                          options_.deviation, begin + first, drawn);
    rounded.resize(static_cast<size_t>(count * SizeInBytes(parameter.dtype())));
    TESSERA_RETURN_IF_ERROR(Convert(DType::kF64,
                                    std::as_bytes(std::span(drawn)),
                                    parameter.dtype(), rounded));
    TESSERA_RETURN_IF_ERROR(Convert(parameter.dtype(), rounded,
                                    elements.dtype(),
                                    BytesOf(elements, first, count)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
