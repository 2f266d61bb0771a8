// A model and a configuration that tests of estimates share.
#ifndef TESSERA_ZERO3_ESTIMATE_TESTING_CONFIGS_H_
#define TESSERA_ZERO3_ESTIMATE_TESTING_CONFIGS_H_

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "zero3/config/zero_config.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// Four layers of 16-bit parameters, divisible by 8.
inline ModelParameters FourLayers() {
  ModelParameters::Builder builder;
  for (int64_t i = 0; i < 4; ++i) {
    builder.Add({.name = absl::StrCat("layers.", i, ".weight"),
                 .shape = {128, 64},
                 .dtype = DType::kBF16,
                 .group = i});
    builder.Add({.name = absl::StrCat("layers.", i, ".bias"),
                 .shape = {64},
                 .dtype = DType::kBF16,
                 .group = i});
  }
  return *builder.Build();
}

// Nothing is offloaded, nothing small.
inline ZeroConfig Plain(int64_t stage) {
  ZeroConfig config;
  config.stage = stage;
  config.parameter_persistence_threshold = 0;
  config.offload_parameters = false;
  config.offload_gradients = false;
  config.offload_optimizer = false;
  return config;
}

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TESTING_CONFIGS_H_
