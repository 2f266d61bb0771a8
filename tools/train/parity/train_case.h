// TrainCase: trains a ParityCase with threads as ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(auto records, TrainCase(run));
//   TESSERA_ASSIGN_OR_RETURN(auto expected, TrainCase(PlainCase(run)));
//   const ParityDifference difference = DifferenceOf(records, expected);
//   report.Add(row, difference);
//   std::cout << report;  // the largest difference of each value of each
//   option
#ifndef TESSERA_TOOLS_TRAIN_PARITY_TRAIN_CASE_H_
#define TESSERA_TOOLS_TRAIN_PARITY_TRAIN_CASE_H_

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
#include "tools/train/loop/run_result.h"
#include "tools/train/parity/covering_array.h"
#include "tools/train/parity/parity_case.h"

namespace tessera::train {

using MakeRankDevice =
    std::function<absl::StatusOr<std::unique_ptr<RankDevice>>(
        collectives::Communicator& world)>;

// The records of all steps, on the devices that every rank makes. Internal if
// the ranks' records differ. If ranks fail, returns the error that the others
// followed from.
absl::StatusOr<std::vector<StepRecord>> TrainOn(
    const ParityCase& run, const MakeRankDevice& make_device);
// The same on the devices of ParityCase::device_seed.
absl::StatusOr<std::vector<StepRecord>> TrainCase(const ParityCase& run);
// The same on emulated devices that forget some waits.
absl::StatusOr<std::vector<StepRecord>> TrainForgetful(
    const ParityCase& run, const ForgottenWaits& forgotten);

// The largest relative differences over all steps. Infinite if the numbers of
// steps differ or a number is not finite.
struct ParityDifference {
  double loss = 0;
  double gradient_norm = 0;
};
ParityDifference DifferenceOf(const std::vector<StepRecord>& actual,
                              const std::vector<StepRecord>& expected);

// The largest differences seen, by the value of each option.
class ParityReport {
 public:
  // `row` is one of ParityProblem().
  void Add(const CoveringRow& row, const ParityDifference& difference);

  int64_t runs() const { return runs_; }
  const ParityDifference& largest() const { return largest_; }

  // One line per value: the number of runs with it and their largest
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

#endif  // TESSERA_TOOLS_TRAIN_PARITY_TRAIN_CASE_H_
