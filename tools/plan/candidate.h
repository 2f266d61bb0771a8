// The search space of the planner: PlanRequest, the question; Candidate, one
// way to train the model on the cluster; and EnumerateCandidates, which lists
// all candidates.
//
//   for (const Candidate& candidate : EnumerateCandidates(request, refused))
//     RunOptionsOf(request, candidate);
#ifndef TESSERA_TOOLS_PLAN_CANDIDATE_H_
#define TESSERA_TOOLS_PLAN_CANDIDATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tools/model_files/model_config.h"
#include "tools/train/settings/run_options.h"
#include "topology/cluster/cluster.h"

namespace tessera::plan {

struct PlanRequest {
  std::string model_name;  // The value of --model of //tools/train.
  model_files::ModelConfig model;
  topology::Cluster cluster;
  int64_t ranks = 1;
  int64_t memory = 0;  // Bytes of a rank.
  int64_t batch = 1;   // Sequences of a step.
  int64_t length = 1;
  DType dtype = DType::kBF16;
  double flops = 0;  // Peak operations per second of a device.
  // The share of the peak that products and attention reach; 0: rates of a GPU,
  // which depend on shapes (device_rates.h).
  double efficiency = 0;
  int64_t top = 5;
};

struct Candidate {
  train::MeshSizes mesh;
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  int64_t zero = 0;
  // When gradients are reduced; kAuto if there is no choice.
  train::ReduceChoice reduce = train::ReduceChoice::kAuto;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  int64_t micro_batch = 1;

  // Always used with tensor parallelism: it sends the same bytes and needs less
  // memory for activations.
  bool sequence_parallel() const { return mesh.tp > 1; }
  int64_t micro_batches(int64_t batch) const {
    return batch / (mesh.dp * micro_batch);
  }
};

// The number of rejected meshes by reason.
using Refusals = std::map<std::string, int64_t>;

// Returns every mesh that the model allows, combined with every useful
// schedule, ZeRO stage, time of gradient reduction, kind of recomputation and
// micro-batch size up to 16. There is only one schedule without pipeline
// parallelism, and stage 0 is used only without data-parallel ranks.
std::vector<Candidate> EnumerateCandidates(const PlanRequest& request,
                                           Refusals& refused);

train::RunOptions RunOptionsOf(const PlanRequest& request,
                               const Candidate& candidate);

// "each" or "last" micro-batch, or "" if there is no choice.
std::string ReduceNameOf(const Candidate& candidate);

// Such as "dp2,pp2,cp1,tp2", followed by ep for mixtures of experts.
std::string MeshNameOf(const Candidate& candidate);

// The settings of //tools/train that select the candidate, by name: strings,
// numbers and true.
nlohmann::ordered_json SettingsOf(const PlanRequest& request,
                                  const Candidate& candidate);

// The command that trains with the candidate: "bazel run //tools/train --
// --model=...".
std::string CommandOf(const PlanRequest& request, const Candidate& candidate);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_CANDIDATE_H_
