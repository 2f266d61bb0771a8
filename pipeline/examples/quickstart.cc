// Generates, lowers, proves, simulates and draws a schedule.
#include <iostream>
#include <span>
#include <string>

#include "base/status_macros.h"
#include "pipeline/draw/terminal.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/validate.h"
#include "pipeline/simulate/simulate.h"

absl::Status Run() {
  using namespace tessera::pipeline;
  TESSERA_ASSIGN_OR_RETURN(
      const Schedule schedule,
      Generate("zb_h1", {.ranks = 3, .chunks = 1, .microbatches = 6}));
  TESSERA_ASSIGN_OR_RETURN(const Schedule lowered, AddCommunication(schedule));
  TESSERA_ASSIGN_OR_RETURN(const Proof proof, Validate(lowered));
  std::cout << proof.computations << " computations and " << proof.messages
            << " messages cannot deadlock; rank 0 holds "
            << proof.peak_activations[0] << " micro-batches\n";
  const Costs costs = Costs::Uniform(
      3, {.forward = 1, .backward_input = 1, .backward_weight = 1});
  TESSERA_ASSIGN_OR_RETURN(const Timeline timeline, Simulate(lowered, costs));
  const Exhibit exhibit = {"zb_h1", timeline};
  TESSERA_ASSIGN_OR_RETURN(const std::string picture,
                           DrawTerminal(std::span(&exhibit, 1)));
  std::cout << picture;
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
