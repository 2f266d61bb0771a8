// Adaptive choosers and communicators: the strategy `adaptive`.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<Communicator> communicator,
//       CreateAdaptiveCommunicator(std::move(engine), options));
//   communicator->AllReduce(...);              // by the fastest algorithm
//   communicator->ExplainAlgorithm(operation); // which, and why
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_CREATE_ADAPTIVE_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_CREATE_ADAPTIVE_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/adaptive/adaptive_chooser.h"
#include "collectives/adaptive/measure_costs.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

struct AdaptiveOptions {
  MeasureOptions measure = {};
  // Where costs are kept; the default is DefaultCacheDirectory() of rank 0.
  // Empty: nowhere.
  std::optional<std::string> cache_directory = std::nullopt;
};

// A chooser for a group like this one: of the costs that rank 0 has in its
// cache, or of new ones, which rank 0 keeps there if it can (the chooser's
// origin() says whether). A collective, as MeasureCosts; all ranks' choosers
// are alike.
absl::StatusOr<std::shared_ptr<const AdaptiveChooser>> CreateAdaptiveChooser(
    Communicator& communicator, const AdaptiveOptions& options = {});

// A communicator over `engine` with such a chooser, for which the costs are
// measured on a group beside it. A collective. `options.chooser` is null: it is
// what this sets.
absl::StatusOr<std::unique_ptr<Communicator>> CreateAdaptiveCommunicator(
    std::unique_ptr<Engine> engine, CommunicatorOptions options,
    const AdaptiveOptions& adaptive = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_CREATE_ADAPTIVE_H_
