// Regret: how much slower the adaptive choice is than the best algorithm.
#ifndef TESSERA_TOOLS_COMM_BENCH_REGRET_H_
#define TESSERA_TOOLS_COMM_BENCH_REGRET_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/comm_bench/row.h"

namespace tessera::tools {

// Sets the choice of the rows that begin their engine's part of a case:
// `chosen` is what the chooser of that engine takes. Rows are all of one case.
void SetChoice(std::span<Row> rows, const std::string& engine,
               const std::string& chosen);

struct RegretSummary {
  std::string op;  // "all" for the last one.
  int64_t cases = 0;
  double p95 = 1;
  double max = 1;
  std::string worst;  // The case of the maximum.
};

// Over the rows that have a choice: one for each operation, in the order of
// operations, then one for all. Empty where there are none.
std::vector<RegretSummary> SummariseRegret(std::span<const Row> rows);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_REGRET_H_
