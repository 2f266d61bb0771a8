// Adaptive communicators (strategy `adaptive`) and the file cache of their
// measured costs, which has one file per key.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<Communicator> communicator,
//       CreateAdaptiveCommunicator(std::move(engine), options));
//   communicator->AllReduce(...);               // Uses the fastest algorithm.
//   communicator->ExplainAlgorithm(operation);  // Explains the choice.
//
// Direct use of the cache:
//
//   const std::string directory = DefaultCacheDirectory();
//   absl::StatusOr<CostTable> costs = LoadCosts(directory, key);
//   if (!costs.ok()) { ... measure ...; StoreCosts(directory, measured); }
//
// Files are named by a hash of the key and replaced atomically. A file that is
// damaged, of another version or of another key is ignored.
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
// Specification 0.8); empty if neither variable is set.
std::string DefaultCacheDirectory();

// The path of the file for a key.
std::string CostPath(const std::string& directory, const CostKey& key);

// NotFound if there are no usable costs; the message says why.
absl::StatusOr<CostTable> LoadCosts(const std::string& directory,
                                    const CostKey& key);

// Creates the directory and its parent if they are missing.
absl::Status StoreCosts(const std::string& directory, const CostTable& table);

struct AdaptiveOptions {
  MeasureOptions measure = {};
  // The cache directory; nullopt: DefaultCacheDirectory() of rank 0; empty: no
  // cache.
  std::optional<std::string> cache_directory = std::nullopt;
};

// Creates a chooser for this group from the costs in rank 0's cache, or from
// new measurements, which rank 0 stores there if possible (the chooser's
// origin() reports whether it did). A collective like MeasureCosts; all ranks
// get the same costs.
absl::StatusOr<std::shared_ptr<const AdaptiveChooser>> CreateAdaptiveChooser(
    Communicator& communicator, const AdaptiveOptions& options = {});

// Creates a communicator over `engine` with such a chooser. Costs are measured
// on a separate group. A collective. `options.chooser` must be null; this
// function sets it.
absl::StatusOr<std::unique_ptr<Communicator>> CreateAdaptiveCommunicator(
    std::unique_ptr<Engine> engine, CommunicatorOptions options,
    const AdaptiveOptions& adaptive = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_CREATE_ADAPTIVE_H_
