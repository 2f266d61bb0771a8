// The files in which measured costs are kept from one run to the next.
//
//   const std::string directory = DefaultCacheDirectory();
//   absl::StatusOr<CostTable> costs = LoadCosts(directory, key);
//   if (!costs.ok()) { ... measure ...; StoreCosts(directory, measured); }
//
// One file for each key, named by a hash of it and replaced as a whole. A file
// that is damaged, of another version or of another key counts as none.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_COST_CACHE_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_COST_CACHE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/adaptive/cost_table.h"

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

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_COST_CACHE_H_
