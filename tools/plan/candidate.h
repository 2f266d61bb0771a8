// Candidate: one way to train a model on a cluster; EnumerateCandidates: all
// ways.
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
#include "tools/train/loop/run_options.h"
#include "topology/cluster/cluster.h"

namespace tessera::plan {

struct PlanRequest {
  std::string model_name;  // For --model of //tools/train.
  model_files::ModelConfig model;
  topology::Cluster cluster;
  int64_t ranks = 1;
  int64_t memory = 0;  // Bytes of a rank.
  int64_t batch = 1;   // Sequences of a step.
  int64_t length = 1;
  DType dtype = DType::kBF16;
  double flops = 0;  // Peak operations per second of a device,
  // and the share that products and attention reach; 0: GPUs, whose rates
  // depend on shapes (device_rates.h).
  double efficiency = 0;
  int64_t top = 5;
};

struct Candidate {
  train::MeshSizes mesh;
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  int64_t zero = 0;
  // kAuto if there is only one time to reduce gradients.
  train::ReduceChoice reduce = train::ReduceChoice::kAuto;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  int64_t micro_batch = 1;

  // With tensor ranks always: the same bytes, fewer activations.
  bool sequence_parallel() const { return mesh.tp > 1; }
  int64_t micro_batches(int64_t batch) const {
    return batch / (mesh.dp * micro_batch);
  }
};

// The number of refused meshes by reason.
using Refusals = std::map<std::string, int64_t>;

// Every mesh of the ranks that the model allows, with every useful schedule,
// ZeRO stage, time to reduce gradients, kind of recomputation and micro-batch
// up to 16: one schedule without a pipeline, stage 0 without data ranks.
std::vector<Candidate> EnumerateCandidates(const PlanRequest& request,
                                           Refusals& refused);

train::RunOptions RunOptionsOf(const PlanRequest& request,
                               const Candidate& candidate);

// "each", "last", or "" if there is only one time.
std::string ReduceNameOf(const Candidate& candidate);

// "dp2,pp2,cp1,tp2", and ep of experts.
std::string MeshNameOf(const Candidate& candidate);

// Its settings of //tools/train, by name: strings, numbers and true.
nlohmann::ordered_json SettingsOf(const PlanRequest& request,
                                  const Candidate& candidate);

// The command that starts it: "bazel run //tools/train -- --model=...".
std::string CommandOf(const PlanRequest& request, const Candidate& candidate);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_CANDIDATE_H_
