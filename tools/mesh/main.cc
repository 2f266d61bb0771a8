// The mesh tool: ranks, coordinates, groups and placement of a mesh.
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/mesh/print.h"
#include "tools/mesh/report.h"
#include "topology/cluster/cluster_file.h"

namespace tessera::tools {
namespace {

struct MeshFlags {
  MeshOptions options;
  std::string save_cluster, svg;
  OutputFormat format = OutputFormat::kText;
};

std::vector<Flag> FlagsOf(MeshFlags& flags) {
  MeshOptions& o = flags.options;
  return {
      FieldFlag("mesh",
                "axes and their sizes, as name and number, separated by commas",
                o.mesh),
      FieldFlag("order",
                "axes from the fastest to the slowest, such as "
                "tp-cp-ep-dp-pp; instead of --preset",
                o.order),
      FieldFlag("preset",
                "a named order: megatron, megatron-tp-pp-dp, megatron-moe, "
                "pipeline-tensor-data or data-pipeline-context-tensor",
                o.preset),
      FieldFlag("axes",
                "lists the groups along these axes, such as tp or dp,cp; "
                "without it along every axis (JSON: the fastest)",
                o.axes),
      FieldFlag("split",
                "divides an axis into parts, fastest first, such as "
                "dp:dp_shard4,dp_replicate2; several separated by ;",
                o.split),
      FieldFlag("ep", "size of the expert axis, taken from dp x cp x tp", o.ep),
      FieldFlag("etp", "size of the tensor axis inside an expert, with --ep",
                o.etp),
      FieldFlag("first_rank", "the number of the mesh's first rank",
                o.first_rank),
      FieldFlag("world_size", "checks that the mesh has this many ranks",
                o.world_size),
      FieldFlag("rank", "shows one rank, its groups and its neighbours",
                o.rank),
      FieldFlag("grid",
                "also prints the ranks in rows and columns, such as dp/tp, or "
                "in planes, rows and columns, such as pp/dp,cp/tp; of --rank's "
                "part of the mesh",
                o.grid),
      FieldFlag("cluster",
                "also prints how the mesh maps to these machines and which "
                "order of the axes would communicate faster: here (this "
                "machine), FILE.json, or a line such as hosts=16,gpus=8",
                o.cluster),
      FieldFlag("save_cluster",
                "also writes the machines of --cluster into this JSON file, in "
                "which their links can be edited",
                flags.save_cluster),
      FieldFlag("model",
                "model whose traffic --cluster counts, as changes to Llama 2 "
                "7B such as layers=80,hidden=8192,parameters=7e10,zero=3",
                o.model),
      FieldFlag("tensor",
                "also prints, as text or JSON, the part of a tensor of this "
                "shape, such as 128x512, that each rank holds",
                o.tensor.tensor),
      FieldFlag("as",
                "the layout of --tensor: for each axis the dimension that it "
                "shards, such as tp:1 or dp:0:ceil,tp:1, or partial sums, such "
                "as tp:sum; without it replicated",
                o.tensor.as),
      FieldFlag("to",
                "another layout of --tensor; prints the cheapest collectives "
                "to reach it and the bytes that each rank sends and receives",
                o.tensor.to),
      FieldFlag("dtype", "the element type of --tensor", o.tensor.dtype),
      FieldFlag("format", "text, json or csv", flags.format),
      FieldFlag("svg",
                "also draws the ranks, coloured by group, into this file",
                flags.svg)};
}

absl::Status RunMeshTool(const MeshFlags& flags, std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(const MeshReport report, MakeReport(flags.options));
  if (const std::string& path = flags.svg; !path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string svg, DrawSvg(report),
                             FlagError("svg", path, _));
    TESSERA_RETURN_IF_ERROR(WriteFile(path, svg),
                            Annotate(_, absl::StrCat("--svg=", path)));
  }
  if (const std::string& path = flags.save_cluster; !path.empty()) {
    if (!report.placement.has_value()) {
      return FlagError("save_cluster", path,
                       "there is no --cluster to write; give for example "
                       "--cluster=here");
    }
    TESSERA_RETURN_IF_ERROR(
        topology::SaveCluster(report.placement->cluster, path),
        Annotate(_, absl::StrCat("--save_cluster=", path)));
  }
  PrintReport(report, flags.format, out);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::tools

TESSERA_TOOL(mesh) {
  using namespace tessera::tools;
  MeshFlags flags;
  flags.options.preset = "megatron";
  const Tool tool = {
      .name = "mesh",
      .summary = "Ranks, coordinates and groups of a mesh of parallel axes.",
      .example = "--mesh=tp2,dp2,pp4 --axes=tp,pp --format=json",
      .flags = FlagsOf(flags)};
  return RunTool(tool, argc, argv,
                 [&] { return RunMeshTool(flags, std::cout); });
}
