// The plan tool: the fastest ways to train a model on a cluster.
#include <cstdint>
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/mesh/report.h"
#include "tools/plan/request.h"
#include "tools/plan/search.h"

ABSL_FLAG(std::string, model, "llama-7b",
          "a preset, or a directory with a config.json of Hugging Face");
ABSL_FLAG(
    std::string, cluster, "hosts=1,gpus=8,memory=80GB",
    "here, a .json file, or a line such as hosts=16,gpus=8,memory=80GB (README "
    "of topology/cluster)");
ABSL_FLAG(int64_t, ranks, 0, "number of ranks; 0: one per device");
ABSL_FLAG(tessera::ByteSize, memory, tessera::ByteSize(0),
          "memory of a rank, such as 80GB; 0: that of the cluster's devices");
ABSL_FLAG(int64_t, batch, 0,
          "sequences per step, over all ranks; 0: about four million tokens, a "
          "multiple of the ranks");
ABSL_FLAG(int64_t, length, 2048, "tokens per sequence");
ABSL_FLAG(std::string, dtype, "bf16", "fp32, bf16 or fp16");
ABSL_FLAG(double, tflops, 0,
          "peak of a device in 10^12 operations per second; 0: for GPUs "
          "that of an H100 (989 in 16 bits, 67 in fp32), for CPU ranks 0.05");
ABSL_FLAG(double, efficiency, 0,
          "the share of the peak that products and attention reach; 0: for "
          "GPUs by shape, for CPU ranks 0.5");
ABSL_FLAG(int64_t, top, 5, "number of meshes to print");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText, "text, json or csv");

namespace tessera::plan {
namespace {

absl::StatusOr<PlanRequest> RequestFromFlags() {
  std::vector<std::string> notes;
  const std::string text = absl::GetFlag(FLAGS_cluster);
  const auto cluster = tools::ReadCluster(text, &notes);
  TESSERA_RETURN_IF_ERROR(tools::FlagError("cluster", text, cluster.status()));
  return MakeRequest({.model = absl::GetFlag(FLAGS_model),
                      .cluster = *cluster,
                      .ranks = absl::GetFlag(FLAGS_ranks),
                      .memory = absl::GetFlag(FLAGS_memory).bytes(),
                      .batch = absl::GetFlag(FLAGS_batch),
                      .length = absl::GetFlag(FLAGS_length),
                      .dtype = absl::GetFlag(FLAGS_dtype),
                      .tflops = absl::GetFlag(FLAGS_tflops),
                      .efficiency = absl::GetFlag(FLAGS_efficiency),
                      .top = absl::GetFlag(FLAGS_top)});
}

const tools::Tool& PlanTool() {
  static const tools::Tool* const tool = new tools::Tool{
      .name = "plan",
      .summary =
          "Chooses mesh, schedule, ZeRO stage, recomputation and "
          "micro-batches to train a model on a cluster.",
      .example = "--model=llama-7b --cluster=hosts=1,gpus=8,memory=80GB",
      .flags = {"model", "cluster", "ranks", "memory", "batch", "length",
                "dtype", "tflops", "efficiency", "top", "format"}};
  return *tool;
}

absl::Status RunPlanTool(std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(const PlanRequest request, RequestFromFlags());
  TESSERA_ASSIGN_OR_RETURN(const PlanReport report, FindPlans(request));
  PrintPlans(request, report, absl::GetFlag(FLAGS_format), out);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::plan

int main(int argc, char** argv) {
  using namespace tessera;
  return tools::RunTool(plan::PlanTool(), argc, argv,
                        [] { return plan::RunPlanTool(std::cout); });
}
