// TrainCase: a ParityCase, trained by threads of this process.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_TRAIN_CASE_H_
#define TESSERA_TOOLS_TRAIN_PARITY_TRAIN_CASE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/loop/step_record.h"
#include "tools/train/parity/parity_case.h"

namespace tessera::train {

// What its steps came to, which all ranks say alike: else Internal. An error of
// a rank is the one that it begins with.
absl::StatusOr<std::vector<StepRecord>> TrainCase(const ParityCase& run);

// The largest differences of any step, as parts of the expected value; infinite
// where there are fewer steps, or a number is none.
struct ParityDifference {
  double loss = 0;
  double gradient_norm = 0;
};
ParityDifference DifferenceOf(const std::vector<StepRecord>& actual,
                              const std::vector<StepRecord>& expected);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_TRAIN_CASE_H_
