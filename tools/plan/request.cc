#include "tools/plan/request.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "topology/config/strategies.h"

namespace tessera::plan {
namespace {

using tools::FlagError;

constexpr int64_t kMostRanks = 1 << 16;

absl::StatusOr<int64_t> NumberFrom(std::string_view flag, int64_t value,
                                   int64_t least, int64_t most) {
  if (value >= least && value <= most) return value;
  return FlagError(
      flag, absl::StrCat(value),
      absl::StrCat("expected a number from ", least, " to ", most));
}

absl::Status SetModel(const PlanQuestion& question, PlanRequest& request) {
  request.model_name = question.model;
  const std::string& name = request.model_name;
  if (absl::StrContains(name, '/') || name == ".") {
    const auto file =
        model_files::LoadHuggingFaceConfig(absl::StrCat(name, "/config.json"));
    TESSERA_RETURN_IF_ERROR(FlagError("model", name, file.status()));
    request.model = file->model;
    return absl::OkStatus();
  }
  const auto preset = model_files::PresetConfig(name);
  TESSERA_RETURN_IF_ERROR(FlagError("model", name, preset.status()));
  request.model = *preset;
  return absl::OkStatus();
}

// The memory of the smallest device; 0 if the memory of a device is unknown.
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

absl::Status SetMachine(const PlanQuestion& question, PlanRequest& request) {
  const int64_t devices = request.cluster.num_devices();
  request.ranks = question.ranks;
  if (request.ranks == 0) request.ranks = devices;
  if (request.ranks < 1 || request.ranks > std::min(devices, kMostRanks)) {
    return FlagError(
        "ranks", absl::StrCat(request.ranks),
        absl::StrCat("the cluster has ", devices,
                     " devices; expected a number from 1 to ",
                     std::min(devices, kMostRanks), ", or 0 for all"));
  }
  request.memory = question.memory;
  if (request.memory == 0) request.memory = DeviceMemory(request.cluster);
  if (request.memory == 0) {
    return FlagError(
        "memory", "0",
        "the memory of the cluster's devices is unknown; give it, for "
        "example --memory=80GB");
  }
  const double tflops = question.tflops;
  if (!(tflops >= 0) || tflops > 1e9) {
    return FlagError("tflops", absl::StrCat(tflops),
                     "expected 0 or more, such as --tflops=989");
  }
  const double usual = !HasGpus(request.cluster)      ? 0.05
                       : request.dtype == DType::kF32 ? 67
                                                      : 989;
  request.flops = (tflops == 0 ? usual : tflops) * 1e12;
  request.efficiency = question.efficiency;
  if (!(request.efficiency >= 0 && request.efficiency <= 1)) {
    return FlagError("efficiency", absl::StrCat(request.efficiency),
                     "expected a share above 0 and up to 1, such as "
                     "--efficiency=0.5, or 0");
  }
  if (request.efficiency == 0 && !HasGpus(request.cluster)) {
    request.efficiency = 0.5;
  }
  return absl::OkStatus();
}

absl::Status SetTask(const PlanQuestion& question, PlanRequest& request) {
  const std::string dtype = question.dtype;
  TESSERA_ASSIGN_OR_RETURN(
      request.dtype, topology::ParseEnum<DType>(dtype),
      FlagError("dtype", dtype, "expected fp32, bf16 or fp16"));
  TESSERA_ASSIGN_OR_RETURN(request.length,
                           NumberFrom("length", question.length, 2, 1 << 24));
  TESSERA_ASSIGN_OR_RETURN(request.top,
                           NumberFrom("top", question.top, 1, 1000));
  return absl::OkStatus();
}

absl::Status SetBatch(const PlanQuestion& question, PlanRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(
      request.batch, NumberFrom("batch", question.batch, 0, int64_t{1} << 24));
  if (request.batch > 0) return absl::OkStatus();
  constexpr int64_t kTokens = int64_t{4} << 20;
  const int64_t rounds =
      std::max<int64_t>(kTokens / request.length / request.ranks, 1);
  request.batch = rounds * request.ranks;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanRequest> MakeRequest(const PlanQuestion& question,
                                        const topology::Cluster& cluster) {
  PlanRequest request = {.model_name = "", .model = {}, .cluster = cluster};
  TESSERA_RETURN_IF_ERROR(SetModel(question, request));
  TESSERA_RETURN_IF_ERROR(SetTask(question, request));
  TESSERA_RETURN_IF_ERROR(SetMachine(question, request));
  TESSERA_RETURN_IF_ERROR(SetBatch(question, request));
  return request;
}

}  // namespace tessera::plan
