// A schedule as a value: read, priced, written.
#include <iostream>

#include "base/status_macros.h"
#include "pipeline/schedule/csv.h"
#include "pipeline/simulate/simulate.h"

absl::Status Run() {
  using namespace tessera::pipeline;
  // 1F1B on two ranks, three micro-batches, in PyTorch's notation.
  TESSERA_ASSIGN_OR_RETURN(const Schedule schedule,
                           ReadCsv("0F0,0F1,0B0,0F2,0B1,0B2\n"
                                   "1F0,1B0,1F1,1B1,1F2,1B2\n"));
  const Costs costs = Costs::Uniform(
      2, {.forward = 1, .backward_input = 1, .backward_weight = 1});
  TESSERA_ASSIGN_OR_RETURN(const Timeline timeline, Simulate(schedule, costs));
  std::cout << "makespan " << timeline.makespan << ", bubble "
            << timeline.BubbleRate() << "\n";
  for (const RankTimeline& rank : timeline.ranks) {
    std::cout << "holds at most " << rank.peak_activations << " micro-batches, "
              << rank.computations.back().action << " ends at " << rank.last()
              << "\n";
  }
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
