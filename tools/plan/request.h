// MakeRequest: a question to the planner as users ask it, with defaults, made
// into a PlanRequest.
//
//   PlanQuestion question = {.model = "llama-7b", .cluster = cluster};
//   TESSERA_ASSIGN_OR_RETURN(const PlanRequest request, MakeRequest(question));
#ifndef TESSERA_TOOLS_PLAN_REQUEST_H_
#define TESSERA_TOOLS_PLAN_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/plan/candidate.h"
#include "topology/cluster/cluster.h"

namespace tessera::plan {

// The fields have flags of the same names.
struct PlanQuestion {
  std::string model;  // A preset, or a directory with a config.json.
  topology::Cluster cluster;
  int64_t ranks = 0;   // 0: one per device.
  int64_t memory = 0;  // Bytes of a rank; 0: the cluster's smallest device's.
  int64_t batch = 0;   // Sequences of a step; 0: about four million tokens.
  int64_t length = 2048;
  std::string dtype = "bf16";
  // Peak of a device in 10^12 operations per second; 0: for GPUs that of an
  // H100, for CPU ranks 0.05.
  double tflops = 0;
  // The share of the peak that is reached; 0: for GPUs by shape, for CPU ranks
  // 0.5.
  double efficiency = 0;
  int64_t top = 5;
};

// InvalidArgument for the first invalid value: "--flag=value: what is allowed".
absl::StatusOr<PlanRequest> MakeRequest(const PlanQuestion& question);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_REQUEST_H_
