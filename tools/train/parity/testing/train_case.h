// Trains parity cases with threads as ranks, and compares their losses.
//
//   TESSERA_ASSIGN_OR_RETURN(auto records, TrainCase(run));
//   TESSERA_ASSIGN_OR_RETURN(auto expected, TrainCase(PlainCase(run)));
//   const ParityDifference difference = DifferenceOf(records, expected);
//   report.Add(row, difference);
//   std::cout << report;  // the largest difference by option and value
#ifndef TESSERA_TOOLS_TRAIN_PARITY_TESTING_TRAIN_CASE_H_
#define TESSERA_TOOLS_TRAIN_PARITY_TESTING_TRAIN_CASE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/testing/forgetful_device.h"
#include "collectives/communicator.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/report/run_result.h"

namespace tessera::train {

using MakeRankDevice =
    std::function<absl::StatusOr<std::unique_ptr<RankDevice>>(
        collectives::Communicator& world)>;

// Trains on the devices that `make_device` makes on every rank, and returns the
// records of all steps. Internal if the ranks' records differ. If ranks fail,
// returns the error that caused the others.
absl::StatusOr<std::vector<StepRecord>> TrainOn(
    const ParityCase& run, const MakeRankDevice& make_device);
// Trains on the devices of ParityCase::device_seed.
absl::StatusOr<std::vector<StepRecord>> TrainCase(const ParityCase& run);
// Trains on emulated devices that omit some waits.
absl::StatusOr<std::vector<StepRecord>> TrainForgetful(
    const ParityCase& run, const ForgottenWaits& forgotten);

// The largest relative differences over all steps. Infinite if the numbers of
// steps differ or a value is infinite or NaN.
struct ParityDifference {
  double loss = 0;
  double gradient_norm = 0;
};
ParityDifference DifferenceOf(const std::vector<StepRecord>& actual,
                              const std::vector<StepRecord>& expected);

// The largest differences of all runs, by the value of each option.
class ParityReport {
 public:
  // `row` is one of ParityProblem().
  void Add(const CoveringRow& row, const ParityDifference& difference);

  int64_t runs() const { return runs_; }
  const ParityDifference& largest() const { return largest_; }

  // Prints one line per value: the number of runs with it and their largest
  // differences.
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

#endif  // TESSERA_TOOLS_TRAIN_PARITY_TESTING_TRAIN_CASE_H_
