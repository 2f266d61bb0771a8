// ParityReport: the largest difference seen, by the value of each option.
//
//   report.Add(row, difference);
//   std::cout << report;
#ifndef TESSERA_TOOLS_TRAIN_PARITY_PARITY_REPORT_H_
#define TESSERA_TOOLS_TRAIN_PARITY_PARITY_REPORT_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <utility>

#include "tools/train/parity/covering_array.h"
#include "tools/train/parity/train_case.h"

namespace tessera::train {

class ParityReport {
 public:
  // Of a row of ParityProblem().
  void Add(const CoveringRow& row, const ParityDifference& difference);

  int64_t runs() const { return runs_; }
  const ParityDifference& largest() const { return largest_; }

  // A line for each value: how many runs had it, and their largest differences.
  friend std::ostream& operator<<(std::ostream& os, const ParityReport& report);

 private:
  struct Line {
    int64_t runs = 0;
    ParityDifference largest;
  };

  int64_t runs_ = 0;
  ParityDifference largest_;
  std::map<std::pair<size_t, int>, Line> lines_;  // By factor and value.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_PARITY_REPORT_H_
