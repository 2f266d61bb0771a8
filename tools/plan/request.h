// Converts a user's question to the planner, in which most fields have
// defaults, to a PlanRequest.
//
//   TESSERA_ASSIGN_OR_RETURN(const PlanRequest request,
//                            MakeRequest({.model = "llama-7b"}, cluster));
#ifndef TESSERA_TOOLS_PLAN_REQUEST_H_
#define TESSERA_TOOLS_PLAN_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/plan/candidate.h"
#include "topology/cluster/cluster.h"

namespace tessera::plan {

// Each field is also a flag of //tools/plan.
struct PlanQuestion {
  std::string model =
      "llama-7b";      // A preset, or a directory with a config.json.
  int64_t ranks = 0;   // 0: one rank per device.
  int64_t memory = 0;  // Bytes per rank; 0: of the smallest device.
  int64_t batch = 0;   // Sequences per step; 0: about four million tokens.
  int64_t length = 2048;
  std::string dtype = "bf16";
  // Peak of a device in 10^12 operations per second; 0: the peak of an H100 for
  // GPUs, 0.05 for CPU ranks.
  double tflops = 0;
  // The share of the peak that is reached; 0: depends on shapes for GPUs, 0.5
  // for CPU ranks.
  double efficiency = 0;
  int64_t top = 5;
};

// InvalidArgument for the first invalid value: "--flag=value: what is allowed".
absl::StatusOr<PlanRequest> MakeRequest(const PlanQuestion& question,
                                        const topology::Cluster& cluster);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_REQUEST_H_
