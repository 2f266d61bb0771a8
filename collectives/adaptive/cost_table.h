// Fitting of measured times: a line of latency and bandwidth, and a curve
// through points.
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

// A size and what was measured there: seconds, or a factor.
struct SizePoint {
  int64_t bytes = 0;
  double value = 0;

  friend bool operator==(const SizePoint&, const SizePoint&) = default;
};

// The model of Hockney (Parallel Computing 20, 1994): latency and the inverse
// of bandwidth.
struct Line {
  double alpha = 0;  // Seconds.
  double beta = 0;   // Seconds a byte.

  friend bool operator==(const Line&, const Line&) = default;
};

// The line of least squares of the relative errors, so that a microsecond
// counts at small sizes as much as a millisecond at large ones. Neither
// coefficient is negative: where one would be, the other is fitted alone.
// Values are above 0; no points give zeros.
Line FitLine(std::span<const SizePoint> points);

// The curve through points of ascending sizes, straight between neighbours on
// logarithmic scales. Below the first it is level; above the last it grows with
// the size as the last two points say (level to proportional). Values are above
// 0; without points 0.
double CurveAt(std::span<const SizePoint> points, int64_t bytes);

// As CurveAt, but level beyond the last point as well: for factors.
double FactorAt(std::span<const SizePoint> points, int64_t bytes);

// The cost of each algorithm by latency, bandwidth and reduction, as far as
// such formulas go. With n ranks, messages of m bytes, r = ceil(log2 n), alpha
// seconds a message, beta seconds a byte moved, gamma seconds a byte combined
// (0 for what does not reduce), and p = m (n-1)/n:
//
//   ring                all_reduce       2(n-1) alpha + 2 p beta + p gamma
//                       parted kinds     (n-1) alpha + p (beta + gamma)
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
//                       within a host and across hosts, one after the other
//
// Where a group spans hosts, flat algorithms pay the far link's alpha and beta.
//
// Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective
// Communication Operations in MPICH (IJHPCA 19, 2005); Sanders, Speck and
// Traeff, Two-tree algorithms (Parallel Computing 35, 2009); Bruck et al.
// (IEEE TPDS 8, 1997).

struct FormulaCosts {
  Line near;         // A message within a host (or socket).
  Line far;          // Between them; as near where there is only one.
  double gamma = 0;  // Seconds to combine a byte with another.

  friend bool operator==(const FormulaCosts&, const FormulaCosts&) = default;
};

// More than 0 (a nanosecond is added), also for what is not listed above.
double FormulaSeconds(const FormulaCosts& costs, Algorithm algorithm,
                      OpKind kind, int64_t bytes, int64_t ranks,
                      int64_t ranks_per_host);

// CostTable: what was measured of one group on one engine: the parameters of
// the cost model, and times of operations that correct it.

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
