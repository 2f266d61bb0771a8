#include "tools/train/settings/mesh/check_mesh.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/generate/generate.h"
#include "tools/cli/cli.h"
#include "tools/train/run/run_options.h"
#include "tools/train/settings/internal/flag_checks.h"
#include "tools/train/settings/mesh/parse_mesh.h"

namespace tessera::train {
namespace {

absl::Status CheckBatch(const Settings& settings, const MeshSizes& mesh) {
  const int64_t unit = mesh.dp * settings.micro_batch;
  if (settings.batch % unit == 0) return absl::OkStatus();
  return RefuseFlag(
      "batch", settings.batch,
      absl::StrCat("must be a multiple of ", unit, " (dp ", mesh.dp,
                   " x --micro_batch=", settings.micro_batch,
                   "), such as --batch=",
                   std::max<int64_t>(settings.batch / unit, 1) * unit));
}

// Every rank of the context group has to have a position.
absl::Status CheckLength(const Settings& settings, const MeshSizes& mesh) {
  constexpr std::string_view kLayouts[] = {"zigzag", "contiguous"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("context", settings.context, kLayouts));
  if (mesh.cp == 1) return absl::OkStatus();
  const int64_t parts = settings.context == "zigzag" ? 2 * mesh.cp : mesh.cp;
  if (settings.length >= parts) return absl::OkStatus();
  return RefuseFlag("length", settings.length,
                    absl::StrCat("must be at least ", parts, ", for cp ",
                                 mesh.cp, " with --context=", settings.context,
                                 " cuts sequences into ", parts,
                                 ", such as --length=", parts));
}

const pipeline::Generator* FindGenerator(std::string_view name) {
  for (const pipeline::Generator& generator : pipeline::Generators()) {
    if (generator.name == name) return &generator;
  }
  return nullptr;
}

absl::Status CheckSchedule(const Settings& settings, const MeshSizes& mesh) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("chunks", settings.chunks, {1, int64_t{1} << 20}));
  // They are made or read, and checked, once the model is known.
  if (IsScheduleFile(settings.schedule) || settings.schedule == "auto") {
    return absl::OkStatus();
  }
  std::vector<std::string_view> names = pipeline::GeneratorNames();
  names.push_back("auto");
  TESSERA_RETURN_IF_ERROR(CheckChoice("schedule", settings.schedule, names));
  const pipeline::Generator& generator = *FindGenerator(settings.schedule);
  if (generator.chunks != 0 && settings.chunks != generator.chunks) {
    return RefuseFlag(
        "chunks", settings.chunks,
        absl::StrCat("--schedule=", settings.schedule, " has ",
                     generator.chunks,
                     " on each rank; give --chunks=", generator.chunks));
  }
  if (generator.even_ranks && mesh.pp % 2 != 0) {
    return RefuseFlag(
        "mesh", settings.mesh,
        absl::StrCat("--schedule=", settings.schedule,
                     " needs an even pp, such as pp", mesh.pp + 1));
  }
  const absl::StatusOr<pipeline::Schedule> schedule = pipeline::Generate(
      settings.schedule,
      {.ranks = mesh.pp,
       .chunks = settings.chunks,
       .microbatches = settings.batch / mesh.dp / settings.micro_batch});
  return tools::FlagError("schedule", settings.schedule, schedule.status());
}

}  // namespace

bool IsScheduleFile(std::string_view schedule) {
  return absl::EndsWith(schedule, ".csv") || absl::StrContains(schedule, "/");
}

absl::Status CheckMesh(const Settings& settings) {
  const absl::StatusOr<MeshSizes> mesh = ParseMesh(settings.mesh);
  if (!mesh.ok()) {
    return RefuseFlag("mesh", settings.mesh,
                      absl::StrCat(mesh.status().message(),
                                   "; give such as --mesh=dp2,pp2,tp2"));
  }
  TESSERA_RETURN_IF_ERROR(CheckBatch(settings, *mesh));
  TESSERA_RETURN_IF_ERROR(CheckLength(settings, *mesh));
  return CheckSchedule(settings, *mesh);
}

}  // namespace tessera::train
