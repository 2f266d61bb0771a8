// The mesh tool: ranks, coordinates, groups and placement of a mesh.
#include <cstdint>
#include <iostream>
#include <optional>
#include <ostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/mesh/print.h"
#include "tools/mesh/report.h"
#include "topology/cluster/cluster_file.h"

ABSL_FLAG(std::string, mesh, "dp2,pp2,tp2",
          "axes and their sizes, as name and number, separated by commas");
ABSL_FLAG(std::string, order, "",
          "axes from the fastest to the slowest, such as tp-cp-ep-dp-pp; "
          "instead of --preset");
ABSL_FLAG(std::string, preset, "megatron",
          "a named order: megatron, megatron-tp-pp-dp, megatron-moe, "
          "pipeline-tensor-data or data-pipeline-context-tensor");
ABSL_FLAG(std::string, axes, "",
          "lists the groups along these axes, such as tp or dp,cp; without it "
          "along every axis (JSON: the fastest)");
ABSL_FLAG(std::string, split, "",
          "divides an axis into parts, fastest first, such as "
          "dp:dp_shard4,dp_replicate2; several separated by ;");
ABSL_FLAG(int64_t, ep, 1, "size of the expert axis, taken from dp x cp x tp");
ABSL_FLAG(int64_t, etp, 1,
          "size of the tensor axis inside an expert, with --ep");
ABSL_FLAG(int64_t, first_rank, 0, "the number of the mesh's first rank");
ABSL_FLAG(std::optional<int64_t>, world_size, std::nullopt,
          "checks that the mesh has this many ranks");
ABSL_FLAG(std::optional<int64_t>, rank, std::nullopt,
          "shows one rank, its groups and its neighbours");
ABSL_FLAG(std::string, grid, "",
          "also prints the ranks in rows and columns, such as dp/tp, or in "
          "planes, rows and columns, such as pp/dp,cp/tp; of --rank's part of "
          "the mesh");
ABSL_FLAG(std::string, cluster, "",
          "also prints how the mesh maps to these machines and which order of "
          "the axes would communicate faster: here (this machine), FILE.json, "
          "or a line such as hosts=16,gpus=8");
ABSL_FLAG(std::string, save_cluster, "",
          "also writes the machines of --cluster into this JSON file, in which "
          "their links can be edited");
ABSL_FLAG(
    std::string, model, "",
    "model whose traffic --cluster counts, as changes to Llama 2 7B such as "
    "layers=80,hidden=8192,parameters=7e10,zero=3");
ABSL_FLAG(std::string, tensor, "",
          "also prints, as text or JSON, the part of a tensor of this shape, "
          "such as 128x512, that each rank holds");
ABSL_FLAG(std::string, as, "",
          "the layout of --tensor: for each axis the dimension that it shards, "
          "such as tp:1 or dp:0:ceil,tp:1, or partial sums, such as tp:sum; "
          "without it replicated");
ABSL_FLAG(std::string, to, "",
          "another layout of --tensor; prints the cheapest collectives to "
          "reach it and the bytes that each rank sends and receives");
ABSL_FLAG(tessera::DType, dtype, tessera::DType::kF32,
          "the element type of --tensor");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText, "text, json or csv");
ABSL_FLAG(std::string, svg, "",
          "also draws the ranks, coloured by group, into this file");

namespace tessera::tools {
namespace {

MeshOptions OptionsFromFlags() {
  MeshOptions options;
  options.mesh = absl::GetFlag(FLAGS_mesh);
  options.order = absl::GetFlag(FLAGS_order);
  options.preset = absl::GetFlag(FLAGS_preset);
  options.axes = absl::GetFlag(FLAGS_axes);
  options.split = absl::GetFlag(FLAGS_split);
  options.ep = absl::GetFlag(FLAGS_ep);
  options.etp = absl::GetFlag(FLAGS_etp);
  options.first_rank = absl::GetFlag(FLAGS_first_rank);
  options.world_size = absl::GetFlag(FLAGS_world_size);
  options.rank = absl::GetFlag(FLAGS_rank);
  options.grid = absl::GetFlag(FLAGS_grid);
  options.cluster = absl::GetFlag(FLAGS_cluster);
  options.model = absl::GetFlag(FLAGS_model);
  options.tensor = {
      .tensor = absl::GetFlag(FLAGS_tensor),
      .as = absl::GetFlag(FLAGS_as),
      .to = absl::GetFlag(FLAGS_to),
      .dtype = absl::GetFlag(FLAGS_dtype),
  };
  return options;
}

const Tool& MeshTool() {
  static const Tool* const tool = new Tool{
      .name = "mesh",
      .summary = "Ranks, coordinates and groups of a mesh of parallel axes.",
      .example = "--mesh=tp2,dp2,pp4 --axes=tp,pp --format=json",
      .flags = {"mesh", "order",   "preset",       "axes",       "split",
                "ep",   "etp",     "first_rank",   "world_size", "rank",
                "grid", "cluster", "save_cluster", "model",      "tensor",
                "as",   "to",      "dtype",        "format",     "svg"}};
  return *tool;
}

absl::Status RunMeshTool(std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(const MeshReport report,
                           MakeReport(OptionsFromFlags()));
  if (const std::string path = absl::GetFlag(FLAGS_svg); !path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string svg, DrawSvg(report),
                             FlagError("svg", path, _));
    TESSERA_RETURN_IF_ERROR(WriteFile(path, svg),
                            Annotate(_, absl::StrCat("--svg=", path)));
  }
  if (const std::string path = absl::GetFlag(FLAGS_save_cluster);
      !path.empty()) {
    if (!report.placement.has_value()) {
      return FlagError("save_cluster", path,

                       "there is no --cluster to write; give for example "
                       "--cluster=here");
    }
    TESSERA_RETURN_IF_ERROR(
        topology::SaveCluster(report.placement->cluster, path),
        Annotate(_, absl::StrCat("--save_cluster=", path)));
  }
  PrintReport(report, absl::GetFlag(FLAGS_format), out);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return RunTool(MeshTool(), argc, argv, [] { return RunMeshTool(std::cout); });
}
