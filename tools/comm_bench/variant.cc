#include "tools/comm_bench/variant.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/algorithm_chooser.h"

namespace tessera::tools {
namespace {

using collectives::Algorithm;
using collectives::OpKind;

Variant Of(Algorithm algorithm) {
  Variant variant;
  variant.name = std::string(AlgorithmName(algorithm));
  if (algorithm != Algorithm::kEngine) {
    variant.carrier = Carrier::kAlgorithm;
    variant.algorithm = algorithm;
  }
  return variant;
}

bool HasAlgorithm(const Capabilities& engine, OpKind op, Algorithm algorithm) {
  if (algorithm == Algorithm::kEngine) return engine.Implements(op);
  return engine.has_transport &&
         collectives::Supports(algorithm, op, /*uneven=*/false);
}

std::vector<Variant> All(const Capabilities& engine, OpKind op) {
  std::vector<Variant> all;
  for (const Algorithm algorithm : collectives::kAllAlgorithms) {
    if (HasAlgorithm(engine, op, algorithm)) all.push_back(Of(algorithm));
  }
  return all;
}

std::vector<Variant> Named(const std::string& name, const Capabilities& engine,
                           OpKind op) {
  if (name == "all") return All(engine, op);
  Variant variant;
  variant.name = name;
  if (name == "adaptive") {
    variant.carrier = Carrier::kAdaptive;
    return {variant};
  }
  // What the engine does not implement is carried out by default algorithms.
  if (name == AlgorithmName(Algorithm::kEngine)) return {variant};
  const auto algorithm = collectives::ParseAlgorithm(name);
  if (!algorithm.ok() || !HasAlgorithm(engine, op, *algorithm)) return {};
  return {Of(*algorithm)};
}

}  // namespace

std::vector<Variant> VariantsFor(const BenchOptions& options,
                                 const Capabilities& engine, OpKind op) {
  std::vector<Variant> variants;
  for (const std::string& name : options.algorithms) {
    for (const Variant& variant : Named(name, engine, op)) {
      if (std::find(variants.begin(), variants.end(), variant) ==
          variants.end()) {
        variants.push_back(variant);
      }
    }
  }
  if (!options.reproducible || !Reduces(op)) return variants;
  const size_t usual = variants.size();
  for (size_t i = 0; i < usual; ++i) {
    Variant variant = variants[i];
    absl::StrAppend(&variant.name, "+reproducible");
    variant.reproducible = true;
    variants.push_back(std::move(variant));
  }
  return variants;
}

}  // namespace tessera::tools
