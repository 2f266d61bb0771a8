#include "tools/plan/candidate.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "topology/config/strategies.h"

namespace tessera::plan {
namespace {

using tensor_parallel::Recompute;
using train::MeshSizes;
using train::ReduceChoice;

constexpr int64_t kMostMicroBatch = 16;

struct PipelineKind {
  std::string_view schedule;
  int64_t chunks;
};
constexpr PipelineKind kPipelines[] = {{"1f1b", 1},   {"interleaved_1f1b", 2},
                                       {"zb_h1", 1},  {"zb_v", 2},
                                       {"v_half", 2}, {"v_min", 2}};

// Returns the reason why the mesh is invalid, or "".
std::string WhyNot(const PlanRequest& request, const MeshSizes& mesh) {
  const model_files::ModelConfig& model = request.model;
  if (mesh.tp > model.heads ||
      !tensor_parallel::QkvParts(model.heads, model.kv_heads, model.head_size,
                                 mesh.tp)
           .ok()) {
    return absl::StrCat("heads (", model.heads, ", ", model.kv_heads,
                        " of keys and values) cannot be divided over tp");
  }
  if (mesh.pp > model.layers) {
    return absl::StrCat("fewer layers (", model.layers, ") than pp");
  }
  if (2 * mesh.cp > request.length) {
    return absl::StrCat("sequences (", request.length, ") too short for cp");
  }
  if (request.batch % mesh.dp != 0) {
    return absl::StrCat("dp does not divide the batch (", request.batch, ")");
  }
  return "";
}

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors;
}

std::vector<MeshSizes> MeshesOf(int64_t ranks, int64_t experts) {
  std::vector<MeshSizes> meshes;
  for (const int64_t tp : DivisorsOf(ranks)) {
    for (const int64_t cp : DivisorsOf(ranks / tp)) {
      for (const int64_t pp : DivisorsOf(ranks / tp / cp)) {
        MeshSizes mesh = {
            .dp = ranks / tp / cp / pp, .pp = pp, .cp = cp, .tp = tp};
        for (const int64_t ep : DivisorsOf(mesh.dp * mesh.cp)) {
          if (ep > 1 && (experts == 0 || experts % ep != 0)) continue;
          mesh.ep = ep;
          meshes.push_back(mesh);
        }
      }
    }
  }
  return meshes;
}

// From stage 2 on, gradients are either kept whole until the last micro-batch
// or reduced after each micro-batch.
std::vector<ReduceChoice> ReducesOf(const PlanRequest& request,
                                    const Candidate& candidate) {
  if (candidate.zero < 2 || candidate.micro_batches(request.batch) == 1) {
    return {ReduceChoice::kAuto};
  }
  return {ReduceChoice::kLastMicroBatch, ReduceChoice::kEachMicroBatch};
}

void AddStatesAndPasses(const PlanRequest& request, Candidate candidate,
                        std::vector<Candidate>& candidates) {
  const int64_t sharers = candidate.mesh.dp * candidate.mesh.cp;
  const int64_t samples = request.batch / candidate.mesh.dp;
  for (int64_t size = 1; size <= kMostMicroBatch; ++size) {
    if (samples % size != 0) continue;
    candidate.micro_batch = size;
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      candidate.recompute = recompute;
      for (int64_t zero = sharers > 1 ? 1 : 0; zero <= (sharers > 1 ? 3 : 0);
           ++zero) {
        candidate.zero = zero;
        for (const ReduceChoice reduce : ReducesOf(request, candidate)) {
          candidate.reduce = reduce;
          candidates.push_back(candidate);
        }
      }
    }
  }
}

}  // namespace

std::vector<Candidate> EnumerateCandidates(const PlanRequest& request,
                                           Refusals& refused) {
  std::vector<Candidate> candidates;
  for (const MeshSizes& mesh :
       MeshesOf(request.ranks, request.model.mixture.experts)) {
    if (const std::string why = WhyNot(request, mesh); !why.empty()) {
      ++refused[why];
      continue;
    }
    for (const auto& [schedule, chunks] : kPipelines) {
      if (mesh.pp == 1 && schedule != "1f1b") continue;
      if (mesh.pp * chunks > request.model.layers) continue;
      AddStatesAndPasses(
          request,
          {.mesh = mesh, .schedule = std::string(schedule), .chunks = chunks},
          candidates);
    }
  }
  return candidates;
}

train::RunOptions RunOptionsOf(const PlanRequest& request,
                               const Candidate& candidate) {
  train::RunOptions options;
  options.mesh = candidate.mesh;
  options.model = request.model;
  options.dtype = request.dtype;
  options.batch = request.batch;
  options.micro_batch = candidate.micro_batch;
  options.length = request.length;
  options.schedule = candidate.schedule;
  options.chunks = candidate.chunks;
  options.sequence_parallel = candidate.sequence_parallel();
  options.recompute = candidate.recompute;
  options.reduce = candidate.reduce;
  options.state.stage = static_cast<int>(candidate.zero);
  return options;
}

std::string ReduceNameOf(const Candidate& candidate) {
  return candidate.reduce == ReduceChoice::kEachMicroBatch   ? "each"
         : candidate.reduce == ReduceChoice::kLastMicroBatch ? "last"
                                                             : "";
}

std::string MeshNameOf(const Candidate& candidate) {
  return candidate.mesh.ToString();
}

nlohmann::ordered_json SettingsOf(const PlanRequest& request,
                                  const Candidate& candidate) {
  nlohmann::ordered_json settings = {{"model", request.model_name},
                                     {"mesh", MeshNameOf(candidate)},
                                     {"schedule", candidate.schedule}};
  if (candidate.chunks > 1) settings["chunks"] = candidate.chunks;
  settings["zero"] = candidate.zero;
  if (candidate.reduce != ReduceChoice::kAuto) {
    settings["reduce"] = ReduceNameOf(candidate);
  }
  settings["offload"] = "none";
  settings["recompute"] = RecomputeName(candidate.recompute);
  settings["batch"] = request.batch;
  settings["micro_batch"] = candidate.micro_batch;
  settings["length"] = request.length;
  settings["dtype"] = topology::EnumName(request.dtype);
  if (candidate.sequence_parallel()) settings["sequence_parallel"] = true;
  return settings;
}

std::string CommandOf(const PlanRequest& request, const Candidate& candidate) {
  std::string command = "bazel run //tools/train --";
  const nlohmann::ordered_json settings = SettingsOf(request, candidate);
  for (const auto& [name, value] : settings.items()) {
    absl::StrAppend(&command, " --", name);
    if (value.is_boolean()) continue;
    absl::StrAppend(
        &command, "=",
        value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
  return command;
}

}  // namespace tessera::plan
