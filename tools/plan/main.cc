// The plan tool: the fastest ways to train a model on a cluster.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/mesh/report.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"
#include "tools/plan/search.h"
#include "topology/config/strategies.h"

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

constexpr int64_t kMostRanks = 1 << 16;

absl::Status Refuse(std::string_view flag, std::string_view value,
                    std::string_view why) {
  return tools::FlagError(flag, value, absl::InvalidArgumentError(why));
}

absl::StatusOr<int64_t> NumberFrom(std::string_view flag, int64_t value,
                                   int64_t least, int64_t most) {
  if (value >= least && value <= most) return value;
  return Refuse(flag, absl::StrCat(value),
                absl::StrCat("expected a number from ", least, " to ", most));
}

absl::Status SetModel(PlanRequest& request) {
  request.model_name = absl::GetFlag(FLAGS_model);
  const std::string& name = request.model_name;
  if (absl::StrContains(name, '/') || name == ".") {
    const auto file =
        model_files::LoadHuggingFaceConfig(absl::StrCat(name, "/config.json"));
    TESSERA_RETURN_IF_ERROR(tools::FlagError("model", name, file.status()));
    request.model = file->model;
    return absl::OkStatus();
  }
  const auto preset = model_files::PresetConfig(name);
  TESSERA_RETURN_IF_ERROR(tools::FlagError("model", name, preset.status()));
  request.model = *preset;
  return absl::OkStatus();
}

// The memory of the smallest device; 0 if one is unknown.
int64_t DeviceMemory(const topology::Cluster& cluster) {
  int64_t least = -1;
  for (const topology::HostGroup& group : cluster.groups()) {
    for (const topology::Device& device : group.devices) {
      least = least < 0 ? device.memory_bytes
                        : std::min(least, device.memory_bytes);
    }
  }
  return std::max<int64_t>(least, 0);
}

bool HasGpus(const topology::Cluster& cluster) {
  for (const topology::HostGroup& group : cluster.groups()) {
    for (const topology::Device& device : group.devices) {
      if (device.kind == topology::DeviceKind::kGpu) return true;
    }
  }
  return false;
}

absl::Status SetMachine(PlanRequest& request) {
  const int64_t devices = request.cluster.num_devices();
  request.ranks = absl::GetFlag(FLAGS_ranks);
  if (request.ranks == 0) request.ranks = devices;
  if (request.ranks < 1 || request.ranks > std::min(devices, kMostRanks)) {
    return Refuse(
        "ranks", absl::StrCat(request.ranks),
        absl::StrCat("the cluster has ", devices,
                     " devices; expected a number from 1 to ",
                     std::min(devices, kMostRanks), ", or 0 for all"));
  }
  request.memory = absl::GetFlag(FLAGS_memory).bytes();
  if (request.memory == 0) request.memory = DeviceMemory(request.cluster);
  if (request.memory == 0) {
    return Refuse(
        "memory", "0",
        "the memory of the cluster's devices is unknown; give it, for "
        "example --memory=80GB");
  }
  const double tflops = absl::GetFlag(FLAGS_tflops);
  if (!(tflops >= 0) || tflops > 1e9) {
    return Refuse("tflops", absl::StrCat(tflops),
                  "expected 0 or more, such as --tflops=989");
  }
  const double usual = !HasGpus(request.cluster)      ? 0.05
                       : request.dtype == DType::kF32 ? 67
                                                      : 989;
  request.flops = (tflops == 0 ? usual : tflops) * 1e12;
  request.efficiency = absl::GetFlag(FLAGS_efficiency);
  if (!(request.efficiency >= 0 && request.efficiency <= 1)) {
    return Refuse("efficiency", absl::StrCat(request.efficiency),
                  "expected a share above 0 and up to 1, such as "
                  "--efficiency=0.5, or 0");
  }
  if (request.efficiency == 0 && !HasGpus(request.cluster)) {
    request.efficiency = 0.5;
  }
  return absl::OkStatus();
}

absl::Status SetTask(PlanRequest& request) {
  const std::string dtype = absl::GetFlag(FLAGS_dtype);
  TESSERA_ASSIGN_OR_RETURN(
      request.dtype, topology::ParseEnum<DType>(dtype),
      Refuse("dtype", dtype, "expected fp32, bf16 or fp16"));
  TESSERA_ASSIGN_OR_RETURN(
      request.length,
      NumberFrom("length", absl::GetFlag(FLAGS_length), 2, 1 << 24));
  TESSERA_ASSIGN_OR_RETURN(
      request.top, NumberFrom("top", absl::GetFlag(FLAGS_top), 1, 1000));
  return absl::OkStatus();
}

absl::Status SetBatch(PlanRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(
      request.batch,
      NumberFrom("batch", absl::GetFlag(FLAGS_batch), 0, int64_t{1} << 24));
  if (request.batch > 0) return absl::OkStatus();
  constexpr int64_t kTokens = int64_t{4} << 20;
  const int64_t rounds =
      std::max<int64_t>(kTokens / request.length / request.ranks, 1);
  request.batch = rounds * request.ranks;
  return absl::OkStatus();
}

absl::StatusOr<PlanRequest> RequestFromFlags() {
  std::vector<std::string> notes;
  const std::string text = absl::GetFlag(FLAGS_cluster);
  const auto cluster = tools::ReadCluster(text, &notes);
  TESSERA_RETURN_IF_ERROR(tools::FlagError("cluster", text, cluster.status()));
  PlanRequest request = {.model_name = "", .model = {}, .cluster = *cluster};
  TESSERA_RETURN_IF_ERROR(SetModel(request));
  TESSERA_RETURN_IF_ERROR(SetTask(request));
  TESSERA_RETURN_IF_ERROR(SetMachine(request));
  TESSERA_RETURN_IF_ERROR(SetBatch(request));
  return request;
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
