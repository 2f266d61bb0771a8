#include "tools/train/launch/verify_losses.h"

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dtype/dtype.h"
#include "topology/config/strategies.h"

namespace tessera::train {

Settings OneRankSettings(const Settings& settings) {
  Settings alone = settings;
  alone.parallel.mesh = {};
  alone.engine = "in_process";
  alone.parallel.strategy = topology::CommunicationStrategy::kAllReduce;
  alone.parallel.schedule = "1f1b";
  alone.parallel.chunks = 1;
  alone.sequence_parallel = false;
  alone.recompute = "none";
  alone.zero = 0;
  alone.offload = "none";
  alone.offload_dir = "";
  alone.compression = "none";
  alone.parallel.memory_limit = {};
  alone.run_dir = "";
  alone.checkpoint_every = 0;
  alone.metrics = "";
  alone.trace = "";
  alone.max_restarts = 0;
  alone.elastic = false;
  alone.quiet = true;
  return alone;
}

LossDifference CompareLosses(const RunResult& run, const RunResult& alone) {
  std::map<int64_t, double> expected;
  for (const StepResult& step : alone.steps) {
    expected[step.record.step] = step.record.loss;
  }
  LossDifference difference;
  for (const StepResult& step : run.steps) {
    const auto found = expected.find(step.record.step);
    if (found == expected.end()) continue;
    const double relative =
        std::abs(step.record.loss - found->second) / std::abs(found->second);
    const bool is_larger = !(relative <= difference.largest);
    if (difference.steps++ == 0 ||
        (is_larger && !std::isnan(difference.largest))) {
      difference.largest = relative;
      difference.at_step = step.record.step;
    }
  }
  return difference;
}

double AllowedDifference(const Settings& settings) {
  return settings.parallel.dtype == DType::kF32 && settings.moments == "f32"
             ? 1e-5
             : 2e-2;
}

absl::Status CheckDifference(const LossDifference& difference,
                             const Settings& settings) {
  if (difference.steps == 0) {
    return absl::DataLossError("--verify: no step is in both runs");
  }
  const double allowed = AllowedDifference(settings);
  if (difference.largest <= allowed) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("--verify: ", DescribeDifference(difference),
                   absl::StrFormat(", and %g is allowed for ", allowed),
                   topology::EnumName(settings.parallel.dtype)));
}

std::string DescribeDifference(const LossDifference& difference) {
  return absl::StrFormat(
      "the losses of %d steps on one rank differ by at most %.2g of their "
      "value (step %d)",
      difference.steps, difference.largest, difference.at_step);
}

}  // namespace tessera::train
