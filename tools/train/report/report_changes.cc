#include "tools/train/report/report_changes.h"

#include "absl/strings/str_cat.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {
namespace {

// The mesh with half as many ranks along one axis and twice the data ranks.
std::string HalfMesh(MeshSizes mesh, int64_t MeshSizes::*axis) {
  mesh.*axis /= 2;
  mesh.dp *= 2;
  return absl::StrCat("--mesh=", mesh.ToString());
}

std::string LargerBatch(const Settings& settings, int64_t factor) {
  return absl::StrCat("--batch=", settings.batch * factor);
}

std::string ChangeForDataRanks(const Settings& settings) {
  const std::string batch = absl::StrCat(
      LargerBatch(settings, 2),
      ", for which gradients are summed as often as now for half of it");
  return settings.zero == 3 ? absl::StrCat(
                                  "--zero=1, which gathers weights behind the "
                                  "optimizer alone, if memory allows; or ",
                                  batch)
                            : batch;
}

}  // namespace

TrafficAxis BusiestAxis(const RunPrediction& prediction) {
  TrafficAxis busiest = TrafficAxis::kDp;
  double most = -1;
  for (const TrafficAxis axis : kTrafficAxes) {
    double sent = 0;
    for (const RankPrediction& rank : prediction.ranks) {
      sent += rank.traffic.SentAlong(axis);
    }
    if (sent <= most) continue;
    most = sent;
    busiest = axis;
  }
  return busiest;
}

std::string ChangeForCommunication(const Settings& settings,
                                   const RunPrediction& prediction) {
  const MeshSizes& mesh = prediction.mesh;
  const TrafficAxis axis = BusiestAxis(prediction);
  const std::string where =
      absl::StrCat("most bytes go along ", TrafficAxisName(axis), ": ");
  if (axis == TrafficAxis::kTp && mesh.tp % 2 == 0) {
    return absl::StrCat(where, HalfMesh(mesh, &MeshSizes::tp));
  }
  if (axis == TrafficAxis::kCp && mesh.cp % 2 == 0) {
    return absl::StrCat(where, HalfMesh(mesh, &MeshSizes::cp));
  }
  if (axis == TrafficAxis::kPp && mesh.pp % 2 == 0) {
    return absl::StrCat(where, HalfMesh(mesh, &MeshSizes::pp));
  }
  return absl::StrCat(where, ChangeForDataRanks(settings));
}

std::string ChangeForMemory(const Settings& settings,
                            const RunPrediction& prediction) {
  const MeshSizes& mesh = prediction.mesh;
  if (settings.recompute == "none") {
    return "--recompute=selective, or --recompute=full for still less";
  }
  if (settings.zero < 3 && mesh.dp * mesh.cp > 1) {
    return "--zero=3, which shares out weights and gradients too";
  }
  if (settings.parallel.micro_batch > 1) {
    return absl::StrCat("--micro_batch=", settings.parallel.micro_batch / 2);
  }
  if (settings.recompute != "full") return "--recompute=full";
  if (settings.offload == "none" || settings.offload_dir.empty()) {
    return "--offload=optimizer --offload_dir=DIR, a directory on a fast disk";
  }
  return absl::StrCat("--length=", settings.length / 2,
                      ", or more ranks on more machines");
}

std::string ChangeForPipeline(const Settings& settings,
                              const RunPrediction& prediction) {
  const int64_t pp = prediction.mesh.pp;
  if (prediction.micro_batches < 4 * pp) {
    if (settings.parallel.micro_batch > 1) {
      return absl::StrCat("--micro_batch=", settings.parallel.micro_batch / 2,
                          ", which makes twice as many micro-batches");
    }
    const int64_t batch =
        4 * pp * prediction.mesh.dp * settings.parallel.micro_batch;
    return absl::StrCat("--batch=", batch, ", which makes ", 4 * pp,
                        " micro-batches of a pipeline of ", pp);
  }
  if (settings.parallel.schedule == "zb_h1" ||
      settings.parallel.schedule == "zb_v") {
    return HalfMesh(prediction.mesh, &MeshSizes::pp);
  }
  return "--schedule=zb_h1, which fills bubbles with gradients of weights";
}

std::string ChangeForTensor(const Settings& settings,
                            const RunPrediction& prediction) {
  if (prediction.mesh.tp % 2 == 0) {
    return absl::StrCat(HalfMesh(prediction.mesh, &MeshSizes::tp),
                        ", whose products are twice as large for each message");
  }
  return absl::StrCat("--micro_batch=", settings.parallel.micro_batch * 2,
                      ", whose messages are fewer");
}

std::string ChangeForStraggler(int64_t rank) {
  return absl::StrCat("see what else runs where rank ", rank,
                      " does, and whether ranks have more --threads than there "
                      "are cores");
}

std::string ChangeForOverlap(const Settings& settings) {
  if (settings.zero == 3) {
    return absl::StrCat("--gather_ahead=", settings.gather_ahead + 1,
                        ", which has more time to hide gathers behind; or "
                        "--micro_batch=",
                        settings.parallel.micro_batch * 2,
                        ", with more computation for the same bytes");
  }
  return absl::StrCat("--micro_batch=", settings.parallel.micro_batch * 2,
                      ", with more computation for the same bytes");
}

std::string ChangeForOffload(const Settings& settings) {
  if (settings.offload_dir.empty()) {
    return settings.compression == "none"
               ? "--offload=none, if memory allows"
               : "--compression=none, which needs no decoding";
  }
  const OffloadChoice offload = OffloadChoice::Of(settings.offload);
  if (offload.activations) {
    return "--recompute=full, which keeps less of each layer, or --offload "
           "without activations, if memory allows; or an --offload_dir on a "
           "faster disk";
  }
  return offload.gradients
             ? "--offload=optimizer, which is read once a step; or an "
               "--offload_dir on a faster disk"
             : "--offload_dir= (host memory), if there is room; or one on a "
               "faster disk";
}

}  // namespace tessera::train
