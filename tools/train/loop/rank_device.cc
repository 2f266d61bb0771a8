#include "tools/train/loop/rank_device.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/device/cuda_device.h"
#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/emulated/emulated_communicator.h"
#include "collectives/groups/agreement.h"
#include "collectives/nccl/nccl_communicator.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tools/train/predict/choose_device.h"
#include "topology/rank.h"
#include "zero3/state/cuda_state_ops.h"

namespace tessera::train {
namespace {

using collectives::Communicator;

// Allocating the memory of a GPU takes seconds.
constexpr absl::Duration kPatience = absl::Minutes(5);

// The seed of a rank's order. It differs between ranks and between neighbouring
// seeds.
uint64_t SeedOf(const Settings& settings, topology::Rank rank) {
  return static_cast<uint64_t>(settings.device_seed) * 0x9E3779B97F4A7C15 +
         static_cast<uint64_t>(rank.value());
}

// True if all ranks are threads of this process.
bool SharesProcess(const Communicator& world) {
  return world.engine_name() == "in_process" || world.size() == 1;
}

absl::StatusOr<std::shared_ptr<Device>> CreateGpu(int ordinal,
                                                  int64_t memory_bytes) {
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<CudaDevice> device,
      CudaDevice::Create({.ordinal = ordinal,
                          .arena_bytes = static_cast<size_t>(memory_bytes)}));
  return device;
}

// Returns one device object for the ranks of this process that have the same
// GPU. The first of them creates the device with the memory of all these ranks.
// A collective of the world.
absl::StatusOr<std::shared_ptr<Device>> ShareGpu(int ordinal,
                                                 int64_t memory_bytes,
                                                 Communicator& world) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> ordinals,
      collectives::ExchangeTexts(world, absl::StrCat(ordinal), kPatience));
  const std::string own = absl::StrCat(ordinal);
  const auto first = std::find(ordinals.begin(), ordinals.end(), own);
  const int64_t sharers = std::count(ordinals.begin(), ordinals.end(), own);
  const bool makes = first - ordinals.begin() == world.rank().value();
  absl::StatusOr<std::shared_ptr<Device>> device = nullptr;
  if (makes) device = CreateGpu(ordinal, memory_bytes * sharers);
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(world, device.status(), kPatience));
  const std::shared_ptr<Device>* const given = makes ? &*device : nullptr;
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> places,
      collectives::ExchangeTexts(
          world, absl::StrCat(reinterpret_cast<uintptr_t>(given)), kPatience));
  uintptr_t place = 0;
  if (!absl::SimpleAtoi(places[static_cast<size_t>(first - ordinals.begin())],
                        &place)) {
    return absl::InternalError("a rank sent no address of its device");
  }
  if (!makes) device = *reinterpret_cast<const std::shared_ptr<Device>*>(place);
  // The variables of the ranks that created devices must live until all ranks
  // have copied them.
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(world, absl::OkStatus(), kPatience));
  return device;
}

// The kind of a device: "cpu", "emulated" or "cuda". The numbers of GPUs may
// differ between ranks.
std::string_view KindOf(std::string_view device) {
  if (device.empty()) return "cpu";
  return device.substr(0, device.find(':'));
}

// Formats "ranks 0, 2, 3"; of many ranks only the first ones.
std::string NameRanks(std::span<const size_t> ranks) {
  constexpr size_t kMostNamed = 8;
  const size_t named = std::min(ranks.size(), kMostNamed);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.first(named), ", "));
  if (named < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  }
  return text;
}

// A collective of the world.
absl::Status CheckSameKind(const Settings& settings, Communicator& world) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> kinds,
      collectives::ExchangeTexts(world, KindOf(settings.device), kPatience));
  std::map<std::string_view, std::vector<size_t>> ranks;
  for (size_t rank = 0; rank < kinds.size(); ++rank) {
    ranks[kinds[rank]].push_back(rank);
  }
  if (ranks.size() == 1) return absl::OkStatus();
  std::vector<std::string> parts;
  for (const auto& [kind, of_kind] : ranks) {
    parts.push_back(absl::StrCat(kind, " on ", NameRanks(of_kind)));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks compute on different devices: ", absl::StrJoin(parts, "; "),
      "; give --device=cuda or --device=cpu to all ranks: with "
      "--device=cuda, a machine without enough GPUs reports why"));
}

absl::StatusOr<int> OrdinalOf(const Settings& settings, int64_t local_rank,
                              bool shares_process) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> found,
                           FindCudaDevices());
  // Several ranks of a process may share one GPU.
  return GpuOfRank(settings.device, found, local_rank, shares_process);
}

DeviceKernels KernelsOfGpus(const Settings& settings, bool shares_process) {
  DeviceKernels kernels;
  kernels.ops = [deterministic = settings.deterministic](Queue& queue) {
    return tensor_parallel::native::CreateCudaOps(
        queue, {.deterministic = deterministic});
  };
  kernels.state_ops = [](Queue& queue) {
    return zero3::native::CudaStateOps(queue);
  };
  kernels.communicator = [shares_process](std::unique_ptr<Communicator> host,
                                          Device& device) {
    return shares_process
               ? collectives::native::CreateCudaCommunicator(std::move(host),
                                                             device)
               : collectives::CreateNcclCommunicator(std::move(host), device);
  };
  return kernels;
}

DeviceKernels KernelsOfCpu(std::shared_ptr<ThreadPool> pool) {
  DeviceKernels kernels;
  kernels.ops = [pool = std::move(pool)](Queue& queue)
      -> absl::StatusOr<std::unique_ptr<tensor_parallel::Ops>> {
    return std::make_unique<tensor_parallel::CpuOps>(
        tensor_parallel::CpuOpsOptions{.pool = pool}, queue);
  };
  kernels.state_ops =
      [](Queue&) -> absl::StatusOr<std::shared_ptr<zero3::StateOps>> {
    return nullptr;
  };
  kernels.communicator = collectives::CreateEmulatedCommunicator;
  return kernels;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankDevice>> RankDevice::Create(
    const Settings& settings, Communicator& world,
    const RankDeviceOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckSameKind(settings, world));
  const auto threads = static_cast<int>(settings.threads);
  if (settings.device.empty() || settings.device == "cpu") {
    return CreateOn(std::make_shared<HostDevice>(), world, threads);
  }
  const std::string flag = absl::StrCat("--device=", settings.device);
  if (settings.device == "emulated") {
    TESSERA_ASSIGN_OR_RETURN(
        std::shared_ptr<Device> device,
        EmulatedDevice::Create(
            {.seed = SeedOf(settings, world.rank()),
             .arena_bytes = static_cast<size_t>(options.memory_bytes)}),
        Annotate(_, flag));
    return CreateOn(std::move(device), world, threads);
  }
  const bool shares_process = SharesProcess(world);
  TESSERA_ASSIGN_OR_RETURN(
      const int ordinal,
      OrdinalOf(settings, options.local_rank.value_or(world.rank().value()),
                shares_process),
      Annotate(_, flag));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Device> device,
                           shares_process
                               ? ShareGpu(ordinal, options.memory_bytes, world)
                               : CreateGpu(ordinal, options.memory_bytes),
                           Annotate(_, flag));
  return CreateWith(KernelsOfGpus(settings, shares_process), std::move(device),
                    world, std::make_shared<ThreadPool>(threads));
}

absl::StatusOr<std::unique_ptr<RankDevice>> RankDevice::CreateOn(
    std::shared_ptr<Device> device, Communicator& world, int threads) {
  auto pool = std::make_shared<ThreadPool>(threads);
  return CreateWith(KernelsOfCpu(pool), std::move(device), world, pool);
}

absl::StatusOr<std::unique_ptr<RankDevice>> RankDevice::CreateWith(
    const DeviceKernels& kernels, std::shared_ptr<Device> device,
    Communicator& world, std::shared_ptr<ThreadPool> pool) {
  std::unique_ptr<RankDevice> rank(new RankDevice);
  rank->pool_ = std::move(pool);
  rank->device_ = std::move(device);
  rank->world_ = &world;
  TESSERA_ASSIGN_OR_RETURN(rank->queue_, rank->device_->CreateQueue("compute"));
  TESSERA_ASSIGN_OR_RETURN(rank->ops_, kernels.ops(*rank->queue_));
  TESSERA_ASSIGN_OR_RETURN(rank->state_ops_, kernels.state_ops(*rank->queue_));
  if (rank->queue_->is_immediate()) return rank;
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> host,
      world.Split(/*colour=*/0, world.rank().value(), world.name()));
  TESSERA_ASSIGN_OR_RETURN(
      rank->own_world_, kernels.communicator(std::move(host), *rank->device_));
  rank->world_ = rank->own_world_.get();
  return rank;
}

}  // namespace tessera::train
