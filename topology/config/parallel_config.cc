#include "topology/config/parallel_config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "topology/axis.h"
#include "topology/config/internal/checks.h"
#include "topology/config/options/stage_placement.h"
#include "topology/layout/expert.h"

namespace tessera::topology {
namespace {

constexpr std::string_view kWhat = "the parallel configuration";

// The axes that make up the mesh; experts are taken out of them afterwards.
std::vector<Axis> MeshAxes(const ParallelConfig& config) {
  std::vector<Axis> axes = {
      {"dp", config.dp}, {"pp", config.pp}, {"tp", config.tp}};
  if (config.cp != AxisSize(1)) axes.push_back({"cp", config.cp});
  return axes;
}

AxisSize* SizeNamed(ParallelConfig& config, std::string_view name) {
  const std::pair<std::string_view, AxisSize*> sizes[] = {{"dp", &config.dp},
                                                          {"tp", &config.tp},
                                                          {"pp", &config.pp},
                                                          {"cp", &config.cp},
                                                          {"ep", &config.ep}};
  for (const auto& [known, size] : sizes) {
    if (known == name) return size;
  }
  return nullptr;
}

internal::MeshShape ShapeOf(const ParallelConfig& config) {
  return {.dp = config.dp.value(),
          .tp = config.tp.value(),
          .pp = config.pp.value(),
          .cp = config.cp.value(),
          .ep = config.ep.value(),
          .order = config.order};
}

internal::PipelineShape PipelineOf(const ParallelConfig& config) {
  return {.pp = config.pp.value(),
          .layers = config.layers,
          .micro_batch_size = config.micro_batch_size,
          .micro_batches = config.micro_batches,
          .schedule = config.schedule,
          .chunks = config.chunks};
}

}  // namespace

absl::StatusOr<ParallelConfig> ParallelConfig::FromSizes(
    std::string_view text) {
  ParallelConfig config;
  TESSERA_RETURN_IF_ERROR(config.SetSizes(text));
  return config;
}

absl::Status ParallelConfig::SetSizes(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Axis> axes, ParseAxes(text));
  ParallelConfig parsed;
  for (const Axis& axis : axes) {
    AxisSize* size = SizeNamed(parsed, axis.name);
    if (size == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "axis \"", axis.name,
          "\" is no axis of a parallel configuration; allowed: dp, tp, pp, cp, "
          "ep, as in dp2,pp2,tp2"));
    }
    *size = axis.size;
  }
  dp = parsed.dp;
  tp = parsed.tp;
  pp = parsed.pp;
  cp = parsed.cp;
  ep = parsed.ep;
  return absl::OkStatus();
}

std::string ParallelConfig::Sizes() const {
  std::vector<Axis> axes = MeshAxes(*this);
  if (ep != AxisSize(1)) axes.push_back({"ep", ep});
  return FormatAxes(axes);
}

absl::StatusOr<int64_t> ParallelConfig::WorldSize() const {
  TESSERA_RETURN_IF_ERROR(
      ProblemsToStatus(internal::CheckWorld(ShapeOf(*this)), kWhat));
  return dp.value() * cp.value() * tp.value() * pp.value();
}

absl::StatusOr<int64_t> ParallelConfig::Stages() const {
  return StageCount(pp.value(), chunks);
}

std::vector<ConfigProblem> ParallelConfig::Problems() const {
  std::vector<ConfigProblem> problems = internal::CheckMesh(ShapeOf(*this));
  internal::Append(internal::CheckPipeline(PipelineOf(*this)), problems);
  internal::Append(internal::CheckChoice("memory_strategy", memory_strategy),
                   problems);
  internal::Append(
      internal::CheckChoice("communication_strategy", communication_strategy),
      problems);
  internal::Append(internal::CheckChoice("precision", precision), problems);
  internal::Append(internal::CheckLimits(device_memory, timeout), problems);
  return problems;
}

std::vector<ConfigProblem> ParallelConfig::ProblemsForWorld(
    int64_t world_size) const {
  std::vector<ConfigProblem> problems =
      internal::CheckWorldSize(ShapeOf(*this), world_size);
  internal::Append(Problems(), problems);
  return problems;
}

absl::Status ParallelConfig::Validate() const {
  return ProblemsToStatus(Problems(), kWhat);
}

absl::Status ParallelConfig::ValidateForWorld(int64_t world_size) const {
  return ProblemsToStatus(ProblemsForWorld(world_size), kWhat);
}

absl::StatusOr<Mesh> ParallelConfig::MakeMesh() const {
  TESSERA_RETURN_IF_ERROR(
      ProblemsToStatus(internal::CheckMesh(ShapeOf(*this)), kWhat));
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create(MeshAxes(*this), order));
  if (ep == AxisSize(1)) return mesh;
  return WithExpertAxes(mesh, ep);
}

}  // namespace tessera::topology
