#include "collectives/nccl/nccl_engine.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/nccl/nccl_collective.h"
#include "collectives/nccl/nccl_group.h"
#include "collectives/nccl/nccl_types.h"

namespace tessera::collectives {
namespace {

// Device memory; cudaMalloc aligns it to 256.
class NcclMemory : public SharedMemory {
 public:
  absl::Status Allocate(int64_t bytes) {
    TESSERA_ASSIGN_OR_RETURN(void* const data,
                             memory_.Reserve(static_cast<size_t>(bytes)));
    bytes_ = {static_cast<std::byte*>(data), static_cast<size_t>(bytes)};
    return absl::OkStatus();
  }
  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  DeviceMemory memory_;
  std::span<std::byte> bytes_;
};

class NcclEngine : public Engine {
 public:
  explicit NcclEngine(std::shared_ptr<NcclGroup> group)
      : group_(std::move(group)) {}

  std::string_view name() const override { return "nccl"; }
  Rank rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }

  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return RunNcclCollective(*group_, operation, context);
  }

  Transport* transport() override { return nullptr; }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(auto subgroup,
                             group_->Subgroup(members, group, deadline));
    return std::make_unique<NcclEngine>(std::move(subgroup));
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    if (bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("nccl: ", bytes, " bytes; 0 or more are allowed"));
    }
    TESSERA_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(*group_->options().device), "cudaSetDevice"));
    auto memory = std::make_unique<NcclMemory>();
    TESSERA_RETURN_IF_ERROR(memory->Allocate(bytes));
    return memory;
  }

  void Abort(const absl::Status& reason) override { group_->Abort(reason); }

  std::vector<PeerReport> Peers() const override {
    return group_->peers().reports();
  }

 private:
  const std::shared_ptr<NcclGroup> group_;
};

absl::Status Validate(const NcclOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nccl: a timeout of ", absl::FormatDuration(options.timeout),
        "; it must be more than 0"));
  }
  constexpr size_t kMaxNameBytes = 64;
  if (options.name.empty() || options.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("nccl: a name of ", options.name.size(), " bytes; 1 to ",
                     kMaxNameBytes, " are allowed"));
  }
  int devices = 0;
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount"),
      Annotate(_, "nccl"));
  const int device = options.device.value_or(0);
  if (device >= 0 && device < devices) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("nccl: device ", device, " of ", devices,
                   " GPUs; devices are 0 to ", devices - 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Store& store, const NcclOptions& options) {
  TESSERA_RETURN_IF_ERROR(Validate(options));
  const int64_t deadline =
      MonotonicNanos() + absl::ToInt64Nanoseconds(options.timeout);
  std::vector<Rank> members;
  for (int64_t r = 0; r < store.size(); ++r) members.push_back(Rank(r));
  TESSERA_ASSIGN_OR_RETURN(
      auto group, NcclGroup::Connect(store, std::move(members), options.name,
                                     options, deadline));
  return std::make_unique<NcclEngine>(std::move(group));
}

}  // namespace tessera::collectives
