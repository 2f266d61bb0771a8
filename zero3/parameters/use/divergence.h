// Divergence: the error for ranks that use parameters in different orders.
//
//   // After a DivergenceSearch every rank gives what it uses at the position
//   // where the orders part:
//   return DivergenceError(position, uses_of_ranks, model);
//   // FAILED_PRECONDITION: rank 2 uses parameter 5 "head" as use 7 of the step
//   // (counted from 0), where 3 of 4 ranks use parameter 4 "norm": it skips
//   // that; ...
#ifndef TESSERA_ZERO3_PARAMETERS_USE_DIVERGENCE_H_
#define TESSERA_ZERO3_PARAMETERS_USE_DIVERGENCE_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/parameter.h"

namespace tessera::zero3 {

// What one rank uses at a position and right after it; nothing where its step
// ends.
struct UseAt {
  std::optional<ParameterId> use;
  std::optional<ParameterId> next;
};

UseAt UseAtPosition(std::span<const ParameterId> order, size_t position);

// FailedPrecondition that names the first rank that does not use what most do
// (of equally many, what the lowest rank uses), the parameter of both, whether
// the rank seems to skip or to add one, and up to eight other ranks that
// differ. OK where all ranks use the same, or there are no ranks. `ranks` is
// indexed by rank; ids need not be of the model.
absl::Status DivergenceError(size_t position, std::span<const UseAt> ranks,
                             const ModelParameters& model);

// DivergenceError at the first position where the orders of all ranks, known in
// one place, are not the same; OK where they are.
absl::Status CheckOrders(std::span<const std::vector<ParameterId>> orders,
                         const ModelParameters& model);

// The trainable parameters that an order leaves out, ascending: those whose
// gradients are zeros where unused parameters are allowed.
std::vector<ParameterId> UnusedParameters(std::span<const ParameterId> order,
                                          const ModelParameters& model);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_USE_DIVERGENCE_H_
