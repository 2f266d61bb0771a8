// CoveringArray: few rows that have every pair of values of two factors
// together at least once, where not everything goes with everything.
//
//   const CoveringProblem problem = {
//       .levels = {4, 2, 3},                    // values of each factor
//       .allowed = [](const CoveringRow& row) {  // -1: not chosen yet
//         return row[0] != 3 || row[1] != 1;
//       }};
//   for (const CoveringRow& row : CoveringArray(problem)) ...
//
// Rows are made one by one, each the best of some candidates that begin with a
// pair which is missing and take, factor by factor, the value that adds most
// pairs (Cohen, Dalal, Fredman and Patton, The AETG System, IEEE TSE 23, 1997).
// The same problem has the same rows everywhere.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_COVERING_ARRAY_H_
#define TESSERA_TOOLS_TRAIN_PARITY_COVERING_ARRAY_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::train {

// The value of each factor, or kNotChosen.
using CoveringRow = std::vector<int>;
inline constexpr int kNotChosen = -1;

struct CoveringProblem {
  std::vector<int> levels;  // At least 1 each.
  // Whether a row may be. False for a row in part only where no choice of the
  // rest may be; what is true then is tried out.
  std::function<bool(const CoveringRow&)> allowed = [](const CoveringRow&) {
    return true;
  };
  int candidates = 12;  // A row.
  uint64_t seed = 1;
};

// Complete rows, each allowed. Every pair that an allowed row can have is in
// one of them. None where no row is allowed.
std::vector<CoveringRow> CoveringArray(const CoveringProblem& problem);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_COVERING_ARRAY_H_
