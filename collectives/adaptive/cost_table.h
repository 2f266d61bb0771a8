// CostTable, the measured communication costs of a group on an engine, with
// fits of measured times and the cost formulas of the algorithms.
//
//
//   Line line = FitLine(points);            // seconds = alpha + beta * bytes
//   double seconds = CurveAt(points, 3000); // between the measured sizes
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_COST_TABLE_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_COST_TABLE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// A message size and the value measured there: seconds, or a factor.
struct SizePoint {
  int64_t bytes = 0;
  double value = 0;

  friend bool operator==(const SizePoint&, const SizePoint&) = default;
};

// Hockney's model (Parallel Computing 20, 1994): latency and inverse bandwidth.
struct Line {
  double alpha = 0;  // Seconds.
  double beta = 0;   // Seconds per byte.

  friend bool operator==(const Line&, const Line&) = default;
};

// The least-squares fit of the relative errors, so that small and large sizes
// count equally. Coefficients are not negative: if one would be, the other is
// fitted alone. Values must be greater than 0; without points both are 0.
Line FitLine(std::span<const SizePoint> points);

// The curve through points of ascending sizes, linear between neighbours on
// logarithmic scales. Constant below the first point; above the last it
// continues the slope of the last two points (between constant and
// proportional). Values must be greater than 0; without points 0.
double CurveAt(std::span<const SizePoint> points, int64_t bytes);

// Like CurveAt, but also constant above the last point; for factors.
double FactorAt(std::span<const SizePoint> points, int64_t bytes);

// The parameters of the cost formulas.
struct FormulaCosts {
  Line near;  // Messages within a host (or socket).
  Line far;   // Messages between hosts; equals `near` if there is only one.
  double gamma = 0;  // Seconds to reduce one byte.

  friend bool operator==(const FormulaCosts&, const FormulaCosts&) = default;
};

// The predicted seconds of an operation by the cost formulas of the algorithms,
// for n ranks and messages of m bytes, with r = ceil(log2 n), p = m (n-1)/n,
// alpha seconds per message, beta seconds per byte moved, and gamma seconds per
// byte reduced (0 without reduction):
//
//   ring                all_reduce       2(n-1) alpha + 2 p beta + p gamma
//                       divided kinds    (n-1) alpha + p (beta + gamma)
//   recursive_doubling  all_reduce       r (alpha + m (beta + gamma))
//                       all_gather       r alpha + p beta
//   halving_doubling    reduce_scatter   r alpha + p (beta + gamma)
//                       others           2 r alpha + 2 p beta + p gamma
//   tree                all_reduce       2 (r alpha + m (beta + gamma))
//                       gather, scatter  r alpha + p beta
//                       others           r alpha + m (beta + gamma)
//   chain               all_reduce       2 ((n-1) alpha + m (beta + gamma))
//                       others           (n-1) alpha + m (beta + gamma)
//   bruck               all_to_all       r (alpha + m/2 beta)
//                       all_gather       r alpha + p beta
//   pairwise            all              (n-1) alpha + p (beta + gamma)
//   hierarchical        halving_doubling (a tree for rooted kinds and barriers)
//                       within each host, then across hosts
//
// If a group spans hosts, flat algorithms use alpha and beta of the far link.
//
// Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective
// Communication Operations in MPICH (IJHPCA 19, 2005); Sanders, Speck and
// Traeff, Two-tree algorithms (Parallel Computing 35, 2009); Bruck et al.
// (IEEE TPDS 8, 1997).
//
// The result is greater than 0 (a nanosecond is added), also for combinations
// that are not listed above.
double FormulaSeconds(const FormulaCosts& costs, Algorithm algorithm,
                      OpKind kind, int64_t bytes, int64_t ranks,
                      int64_t ranks_per_host);

// The configuration for which costs are valid.
struct CostKey {
  std::string hardware;  // DescribeHardware() of rank 0.
  std::string engine;
  int64_t ranks = 1;
  int64_t ranks_per_host = 1;
  bool reproducible = false;

  friend bool operator==(const CostKey&, const CostKey&) = default;
};

// The measured parameters of the formulas and measured times of operations.
struct CostTable {
  CostKey key;

  FormulaCosts costs;

  // Seconds by size of the whole message, ascending, for the algorithms that
  // were measured.
  std::map<std::pair<OpKind, Algorithm>, std::vector<SizePoint>> measured;

  friend bool operator==(const CostTable&, const CostTable&) = default;
};

inline constexpr size_t kMaxCostPoints = 32;
inline constexpr size_t kMaxCostText = size_t{1} << 18;

// InvalidArgument unless all numbers are finite and in range, sizes ascend and
// kinds are collectives.
absl::Status CheckCostTable(const CostTable& table);

// A JSON document with the format's version and a checksum. `table` must be
// valid.
std::string CostTableToJson(const CostTable& table);

// Parses the document; restores all bits. InvalidArgument if the text is larger
// than kMaxCostText, malformed, of another version, or damaged.
absl::StatusOr<CostTable> CostTableFromJson(std::string_view text);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_COST_TABLE_H_
