// The files in which measured costs are kept from one run to the next.
//
//   const std::string directory = DefaultCacheDirectory();
//   absl::StatusOr<CostTable> costs = LoadCosts(directory, key);
//   if (!costs.ok()) { ... measure ...; StoreCosts(directory, measured); }
//
// One file for each key, named by a hash of it and replaced as a whole. A file
// that is damaged, of another version or of another key counts as none.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_CREATE_ADAPTIVE_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_CREATE_ADAPTIVE_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/adaptive/adaptive_chooser.h"
#include "collectives/adaptive/cost_table.h"
#include "collectives/adaptive/measure_costs.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

// $XDG_CACHE_HOME/tessera, or ~/.cache/tessera (XDG Base Directory
// Specification 0.8); empty where neither variable is set.
std::string DefaultCacheDirectory();

// Where the costs of a key are kept.
std::string CostPath(const std::string& directory, const CostKey& key);

// NotFound where there are none that serve, saying why.
absl::StatusOr<CostTable> LoadCosts(const std::string& directory,
                                    const CostKey& key);

// Creates the directory where it is missing (not its parents' parents).
absl::Status StoreCosts(const std::string& directory, const CostTable& table);

// Adaptive choosers and communicators: the strategy `adaptive`.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<Communicator> communicator,
//       CreateAdaptiveCommunicator(std::move(engine), options));
//   communicator->AllReduce(...);              // by the fastest algorithm
//   communicator->ExplainAlgorithm(operation); // which, and why

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
