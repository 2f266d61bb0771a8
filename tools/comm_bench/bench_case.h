// MeasureCase: all variants of one operation at one size, in turns.
#ifndef TESSERA_TOOLS_COMM_BENCH_BENCH_CASE_H_
#define TESSERA_TOOLS_COMM_BENCH_BENCH_CASE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/operation/operation.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/job.h"
#include "tools/comm_bench/row.h"
#include "tools/comm_bench/variant.h"

namespace tessera::tools {

struct Contestant {
  Job* job = nullptr;
  Variant variant;
};

struct BenchCase {
  collectives::OpKind op = collectives::OpKind::kAllReduce;
  DType dtype = DType::kF32;
  int64_t count = 0;  // As OperandShape's.
  int64_t world = 1;
};

// How many operations an iteration batches, for one that takes `seconds`: as
// many as make a batch of 40 us, at most 64; one where it takes longer.
int64_t BatchFor(double seconds);

// The median over iterations of the slowest rank's time.
double MedianOfSlowest(const std::vector<std::vector<double>>& by_rank);

// A row for each contestant, in their order.
absl::StatusOr<std::vector<Row>> MeasureCase(
    const BenchOptions& options, const BenchCase& bench_case,
    const std::vector<Contestant>& contestants,
    const std::function<void(const std::string&)>& on_progress);

// What the adaptive chooser of each job takes, set on the rows.
absl::Status AddChoices(const BenchOptions& options,
                        const BenchCase& bench_case,
                        const std::vector<Contestant>& contestants,
                        std::vector<Row>* rows);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_BENCH_CASE_H_
