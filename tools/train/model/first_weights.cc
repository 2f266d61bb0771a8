#include "tools/train/model/first_weights.h"

#include <string>
#include <string_view>

#include "base/status_macros.h"

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

}  // namespace

absl::Status SetFirstWeights(
    std::span<tensor_parallel::Parameter* const> parameters, uint64_t seed,
    double deviation, bool tied_embeddings) {
  for (tensor_parallel::Parameter* parameter : parameters) {
    std::string name = parameter->name();
    if (name.ends_with("norm.weight")) {
      TESSERA_RETURN_IF_ERROR(parameter->Fill(1));
      continue;
    }
    if (tied_embeddings && name == "head.output.weight") {
      name = "embedding.weight";
    }
    TESSERA_RETURN_IF_ERROR(parameter->FillNormal(
        {.seed = seed, .stream = HashOf(name)}, deviation));
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
