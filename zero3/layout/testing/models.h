// Random small models and layouts, for tests.
#ifndef TESSERA_ZERO3_LAYOUT_TESTING_MODELS_H_
#define TESSERA_ZERO3_LAYOUT_TESTING_MODELS_H_

#include <cstdint>
#include <random>

#include "absl/strings/str_cat.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// Up to 7 parameters of 0 to `most` elements, of mixed types, some frozen, in
// up to 4 groups.
inline ModelParameters RandomModel(std::mt19937_64& random, int64_t most = 40) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kF32, DType::kF16,
                              DType::kF64};
  ModelParameters::Builder builder;
  const int count = static_cast<int>(random() % 8);
  for (int i = 0; i < count; ++i) {
    builder.Add({.name = absl::StrCat("p", i),
                 .shape = {static_cast<int64_t>(
                     random() % static_cast<uint64_t>(most + 1))},
                 .dtype = kTypes[random() % 4],
                 .trainable = random() % 4 != 0,
                 .group = static_cast<int64_t>(random() % 4)});
  }
  return *builder.Build();
}

inline LayoutOptions RandomLayoutOptions(std::mt19937_64& random) {
  constexpr int64_t kAlignments[] = {1, 1, 2, 3, 8};
  return {.kind = static_cast<LayoutKind>(random() % 3),
          .ranks = 1 + static_cast<int64_t>(random() % 9),
          .alignment = kAlignments[random() % 5],
          .small_below =
              random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 30)};
}

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_LAYOUT_TESTING_MODELS_H_
