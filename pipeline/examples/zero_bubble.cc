// Writes a picture: 1F1B, and the same work with its backwards split.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "pipeline/draw/svg.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"

absl::Status Run() {
  using namespace tessera::pipeline;
  const Costs costs = Costs::Uniform(
      4, {.forward = 1, .backward_input = 1, .backward_weight = 1});
  std::vector<Exhibit> exhibits;
  for (const char* name : {"1f1b", "zb_h1"}) {
    TESSERA_ASSIGN_OR_RETURN(
        const Schedule schedule,
        Generate(name, {.ranks = 4, .chunks = 1, .microbatches = 8}));
    TESSERA_ASSIGN_OR_RETURN(Timeline timeline,
                             Simulate(schedule, costs, {.traces = false}));
    exhibits.push_back({name, std::move(timeline)});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string svg,
                           DrawSvg(exhibits, kMilliseconds));
  std::cout << svg;
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
