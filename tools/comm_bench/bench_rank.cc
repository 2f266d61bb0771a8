#include "tools/comm_bench/bench_rank.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/device/cuda_device.h"
#include "base/device/emulated_device.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/bootstrap/network_options.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/emulated/emulated_communicator.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/engine/operation_context.h"
#include "collectives/in_process/in_process.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/shared_memory/shared_memory.h"
#include "collectives/two_level/two_level_engine.h"

namespace tessera::tools {
namespace {

using collectives::Communicator;
using collectives::Engine;
using collectives::MonotonicNanos;
using collectives::Store;
using collectives::Work;

using Seconds = std::vector<double>;

constexpr absl::Duration kJoinTimeout = absl::Seconds(30);

std::vector<std::string> NamesFor(std::string_view device) {
  if (device == "cuda") return {"cuda", "nccl"};
  if (device == "emulated") return {"emulated"};
  std::vector<std::string> names = collectives::RegisteredEngines();
  if (std::find(names.begin(), names.end(), "mpi") != names.end()) {
    names.push_back("mpi_blocking");
  }
  names.insert(names.end(), {"in_process", "shared_memory"});
  return names;
}

// The engine of this process's only rank.
absl::StatusOr<std::unique_ptr<Engine>> MakeProcess(const std::string& name,
                                                    Store& store) {
  if (name == "shared_memory" || name == "nccl") {
    return collectives::CreateSharedMemoryEngine(store);
  }
  collectives::EngineSetup setup = {
      .rank = store.rank(), .size = store.size(), .store = &store};
  if (name == "gloo" || name == "auto") {
    TESSERA_ASSIGN_OR_RETURN(
        setup.options, collectives::NetworkOptions(
                           collectives::ProcessEnvironment(), kJoinTimeout));
  }
  if (name != "mpi_blocking") return collectives::CreateEngine(name, setup);
  setup.options = {{"blocking", "true"}};
  return collectives::CreateEngine("mpi", setup);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeControlEngine(Store& store) {
  constexpr char kName[] = "comm_bench";
  return collectives::CreateTwoLevelEngine(
      store, {.shared_memory = {.name = kName}},
      [&]() -> absl::StatusOr<std::unique_ptr<Engine>> {
        collectives::EngineSetup setup = {
            .rank = store.rank(), .size = store.size(), .store = &store};
        TESSERA_ASSIGN_OR_RETURN(
            setup.options,
            collectives::NetworkOptions(collectives::ProcessEnvironment(),
                                        kJoinTimeout));
        setup.options["name"] = kName;
        return collectives::CreateEngine("gloo", setup);
      });
}

namespace {

// The GPUs that ranks can have, in the order of their numbers.
absl::StatusOr<std::vector<int>> UsableGpus() {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> found,
                           FindCudaDevices());
  std::vector<int> usable;
  for (const CudaDeviceInfo& gpu : found) {
    if (gpu.usable.ok()) usable.push_back(gpu.ordinal);
  }
  if (usable.empty()) return found[0].usable;
  return usable;
}

// Gives the GPUs to the ranks in turn. NCCL refuses two ranks on one GPU.
absl::Status AddGpus(int64_t first_rank, bool share,
                     std::vector<RankParts>& parts) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> usable, UsableGpus());
  std::map<int, std::shared_ptr<Device>> by_ordinal;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t rank = static_cast<size_t>(first_rank) + i;
    if (rank >= usable.size() && !share) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " has no GPU: ", usable.size(),
          " are usable and nccl needs one for each rank; use --np=",
          usable.size(), ", or --engine=cuda, whose ranks share"));
    }
    const int ordinal = usable[rank % usable.size()];
    std::shared_ptr<Device>& device = by_ordinal[ordinal];
    if (device == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(device,
                               CudaDevice::Create({.ordinal = ordinal}));
    }
    parts[i].device = device;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchEngine::Check() const {
  std::string known;
  for (const std::string_view place : {"cpu", "cuda", "emulated"}) {
    const std::vector<std::string> names = NamesFor(place);
    if (place == device &&
        std::find(names.begin(), names.end(), name) != names.end()) {
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : "; ", "--device=", place, ": ",
                    absl::StrJoin(names, " "));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown engine \"", name, "\" with --device=", device,
                   " in this binary; the engines are: ", known));
}

bool BenchEngine::IsThreads() const {
  return name == (device == "cpu" ? "in_process" : device);
}

absl::StatusOr<std::vector<RankParts>> BenchEngine::Make(int64_t world,
                                                         Store& store) const {
  std::vector<RankParts> parts(IsThreads() ? static_cast<size_t>(world) : 1);
  if (IsThreads()) {
    TESSERA_ASSIGN_OR_RETURN(auto engines,
                             collectives::CreateInProcessEngines(world));
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].engine = std::move(engines[i]);
    }
  } else {
    TESSERA_ASSIGN_OR_RETURN(parts[0].engine, MakeProcess(name, store));
  }
  if (device == "cuda") {
    TESSERA_RETURN_IF_ERROR(
        AddGpus(IsThreads() ? 0 : store.rank().value(), name == "cuda", parts));
  } else if (device == "emulated") {
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Device> emulated,
                             EmulatedDevice::Create());
    for (RankParts& part : parts) part.device = emulated;
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<Communicator>> BenchEngine::OnDevice(
    std::unique_ptr<Communicator> host, Device& on_device) const {
  if (name == "nccl") {
    return collectives::CreateNcclCommunicator(std::move(host), on_device);
  }
  return device == "cuda" ? collectives::native::CreateCudaCommunicator(
                                std::move(host), on_device)
                          : collectives::CreateEmulatedCommunicator(
                                std::move(host), on_device);
}

std::string Variant::Name() const {
  return std::string(adaptive ? "adaptive"
                              : AlgorithmName(algorithm.value_or(
                                    collectives::Algorithm::kEngine)));
}

absl::StatusOr<std::unique_ptr<BenchRank>> BenchRank::Create(
    const BenchOptions& options, const BenchEngine& engine, RankParts parts) {
  std::unique_ptr<BenchRank> rank(new BenchRank(options));
  rank->engine_ = parts.engine.get();
  TESSERA_ASSIGN_OR_RETURN(rank->plain_,
                           Communicator::Create(std::move(parts.engine), {}));
  if (parts.device == nullptr) return rank;
  rank->device_ = std::move(parts.device);
  TESSERA_ASSIGN_OR_RETURN(rank->queue_,
                           rank->device_->CreateQueue("operands"));
  TESSERA_ASSIGN_OR_RETURN(
      rank->plain_, engine.OnDevice(std::move(rank->plain_), *rank->device_));
  return rank;
}

Capabilities BenchRank::capabilities() const {
  const bool on_device = device_ != nullptr;
  Capabilities result;
  result.has_transport = !on_device && engine_->transport() != nullptr;
  for (const collectives::OpKind kind : collectives::kCollectiveKinds) {
    if (on_device || engine_->Implements(kind)) {
      result.kinds |= uint32_t{1} << static_cast<int>(kind);
    }
  }
  return result;
}

absl::Status BenchRank::Prepare(const Task& task) {
  communicator_ = plain_.get();
  if (task.variant.adaptive) {
    constexpr uint32_t kGroup = 1000;  // Above the group numbers of plain_.
    if (adaptive_ == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(
          std::unique_ptr<Engine> engine,
          collectives::Duplicate(*engine_, kGroup, absl::Minutes(1)));
      TESSERA_ASSIGN_OR_RETURN(
          adaptive_,
          collectives::CreateAdaptiveCommunicator(std::move(engine), {}));
    }
    communicator_ = adaptive_.get();
  }
  call_.algorithm = task.variant.algorithm;
  // Registered memory belongs to a communicator.
  Communicator& owner = options_.registered ? *communicator_ : *plain_;
  // In place every operation of a batch needs its own buffers.
  const int64_t slots = task.in_place ? task.batch : 1;
  const std::string key =
      absl::StrCat(OpKindName(task.op), DTypeName(task.dtype),
                   ReduceOpName(task.reduction), task.bytes, " ", task.in_place,
                   slots, " ", reinterpret_cast<uintptr_t>(&owner));
  if (operands_.has_value() && key == operands_key_) return absl::OkStatus();
  operands_.reset();
  operands_key_ = key;
  TESSERA_ASSIGN_OR_RETURN(
      operands_,
      Operands::Allocate(
          owner,
          {.operation = MakeOperation(task.op, task.dtype,
                                      ReductionFor(task.reduction, task.dtype),
                                      task.bytes, owner.rank(), owner.size(),
                                      topology::Rank(options_.root)),
           .in_place = task.in_place,
           .registered = options_.registered,
           .slots = slots},
          queue_.get()));
  return absl::OkStatus();
}

// On a device, enqueues all operations and waits for the last: they run in the
// order of the calls.
absl::Status BenchRank::RunBatch(int64_t batch) {
  std::optional<Work> last;
  for (int64_t i = 0; i < batch; ++i) {
    const auto& operation = operands_->operation(i % operands_->slots());
    if (device_ != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(last, communicator_->Start(operation, call_));
    } else {
      TESSERA_RETURN_IF_ERROR(communicator_->Run(operation, call_));
    }
  }
  return last.has_value() ? last->Wait() : absl::OkStatus();
}

absl::StatusOr<Seconds> BenchRank::Time(const Task& task) {
  TESSERA_RETURN_IF_ERROR(Prepare(task));
  Seconds seconds;
  const int64_t total = task.warmup + task.iterations;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t iteration = task.first_iteration + i;
    TESSERA_RETURN_IF_ERROR(operands_->Rewrite(iteration));
    TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
    const int64_t begin = MonotonicNanos();
    TESSERA_RETURN_IF_ERROR(RunBatch(task.batch));
    const int64_t end = MonotonicNanos();
    // If ranks share processors, the next work of this rank would delay the
    // others.
    TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
    if (i >= task.warmup) {
      seconds.push_back(1e-9 * static_cast<double>(end - begin) /
                        static_cast<double>(task.batch));
    }
    if (options_.check && (i == 0 || i == total - 1)) {
      TESSERA_RETURN_IF_ERROR(operands_->Check(iteration));
    }
  }
  return seconds;
}

}  // namespace tessera::tools
