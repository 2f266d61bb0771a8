// The plan tool: the fastest ways to train a model on a cluster.
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/mesh/report.h"
#include "tools/plan/request.h"
#include "tools/plan/search.h"

namespace tessera::plan {
namespace {

struct PlanFlags {
  PlanQuestion question;
  std::string cluster = "hosts=1,gpus=8,memory=80GB";
  ByteSize memory;
  tools::OutputFormat format = tools::OutputFormat::kText;
};

std::vector<tools::Flag> FlagsOf(PlanFlags& flags) {
  using tools::FieldFlag;
  PlanQuestion& q = flags.question;
  return {
      FieldFlag("model",
                "a preset, or a directory with a config.json of Hugging Face",
                q.model),
      FieldFlag("cluster",
                "here, a .json file, or a line such as "
                "hosts=16,gpus=8,memory=80GB (README of topology/cluster)",
                flags.cluster),
      FieldFlag("ranks", "number of ranks; 0: one per device", q.ranks),
      FieldFlag("memory",
                "memory of a rank, such as 80GB; 0: that of the cluster's "
                "devices",
                flags.memory),
      FieldFlag("batch",
                "sequences per step, over all ranks; 0: about four million "
                "tokens, a multiple of the ranks",
                q.batch),
      FieldFlag("length", "tokens per sequence", q.length),
      FieldFlag("dtype", "fp32, bf16 or fp16", q.dtype),
      FieldFlag("tflops",
                "peak of a device in 10^12 operations per second; 0: for GPUs "
                "that of an H100 (989 in 16 bits, 67 in fp32), for CPU ranks "
                "0.05",
                q.tflops),
      FieldFlag("efficiency",
                "the share of the peak that products and attention reach; 0: "
                "for GPUs by shape, for CPU ranks 0.5",
                q.efficiency),
      FieldFlag("top", "number of meshes to print", q.top),
      FieldFlag("format", "text, json or csv", flags.format)};
}

absl::Status RunPlanTool(PlanFlags& flags, std::ostream& out) {
  std::vector<std::string> notes;
  TESSERA_ASSIGN_OR_RETURN(const topology::Cluster cluster,
                           tools::ReadCluster(flags.cluster, &notes),
                           tools::FlagError("cluster", flags.cluster, _));
  flags.question.memory = flags.memory.bytes();
  TESSERA_ASSIGN_OR_RETURN(const PlanRequest request,
                           MakeRequest(flags.question, cluster));
  TESSERA_ASSIGN_OR_RETURN(const PlanReport report, FindPlans(request));
  PrintPlans(request, report, flags.format, out);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::plan

TESSERA_TOOL(plan) {
  using namespace tessera;
  plan::PlanFlags flags;
  const tools::Tool tool = {
      .name = "plan",
      .summary =
          "Chooses mesh, schedule, ZeRO stage, recomputation and micro-batches "
          "to train a model on a cluster.",
      .example = "--model=llama-7b --cluster=hosts=1,gpus=8,memory=80GB",
      .flags = plan::FlagsOf(flags)};
  return tools::RunTool(tool, argc, argv,
                        [&] { return plan::RunPlanTool(flags, std::cout); });
}
