// Covering arrays: small sets of rows that contain every allowed pair of values
// of two factors at least once.
//
//   const CoveringProblem problem = {
//       .levels = {4, 2, 3},                    // values of each factor
//       .allowed = [](const CoveringRow& row) {  // -1: not chosen yet
//         return row[0] != 3 || row[1] != 1;
//       }};
//   for (const CoveringRow& row : CoveringArray(problem)) ...
//
// The algorithm is greedy: each row is the best of several candidates, which
// start with a missing pair and choose, factor by factor, the value that adds
// most pairs (Cohen, Dalal, Fredman and Patton, The AETG System, IEEE TSE 23,
// 1997). It is deterministic on every platform.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_TESTING_COVERING_ARRAY_H_
#define TESSERA_TOOLS_TRAIN_PARITY_TESTING_COVERING_ARRAY_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::train {

// The value of each factor, or kNotChosen.
using CoveringRow = std::vector<int>;
inline constexpr int kNotChosen = -1;

struct CoveringProblem {
  std::vector<int> levels;  // At least 1 each.
  // Returns true if the row is allowed. For a partial row, it may return false
  // only if no completion is allowed; otherwise completions are searched.
  std::function<bool(const CoveringRow&)> allowed = [](const CoveringRow&) {
    return true;
  };
  int candidates = 12;  // Per row.
  uint64_t seed = 1;
};

// Complete, allowed rows that together contain every pair that an allowed row
// can contain. Empty if no row is allowed.
std::vector<CoveringRow> CoveringArray(const CoveringProblem& problem);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_TESTING_COVERING_ARRAY_H_
