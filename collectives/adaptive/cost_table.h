// CostTable: what was measured of one group on one engine: the parameters of
// the cost model, and times of operations that correct it.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_COST_TABLE_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_COST_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/adaptive/fit.h"
#include "collectives/adaptive/formula.h"
#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// What costs hold for. Costs of another key are of no use.
struct CostKey {
  std::string hardware;  // DescribeHardware() of rank 0.
  std::string engine;
  int64_t ranks = 1;
  int64_t ranks_per_host = 1;
  bool reproducible = false;

  friend bool operator==(const CostKey&, const CostKey&) = default;
};

struct CostTable {
  CostKey key;

  FormulaCosts costs;

  // Seconds by bytes of the whole message, ascending. Only of what the engine
  // has.
  std::map<std::pair<OpKind, Algorithm>, std::vector<SizePoint>> measured;

  friend bool operator==(const CostTable&, const CostTable&) = default;
};

inline constexpr size_t kMaxCostPoints = 32;
inline constexpr size_t kMaxCostText = size_t{1} << 18;

// OK where every number is finite and in range, sizes ascend and kinds are
// collectives; else InvalidArgument.
absl::Status CheckCostTable(const CostTable& table);

// A JSON document with the format's version and a checksum. `table` is one that
// CheckCostTable allows.
std::string CostTableToJson(const CostTable& table);

// Reads it back, to the last bit. InvalidArgument where the text is larger than
// kMaxCostText, no such document, of another version, or damaged.
absl::StatusOr<CostTable> CostTableFromJson(std::string_view text);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_COST_TABLE_H_
