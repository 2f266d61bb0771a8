#include "collectives/nccl/nccl_group.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"
#include "collectives/nccl/nccl_types.h"

namespace tessera::collectives {
absl::StatusOr<void*> DeviceMemory::Reserve(size_t bytes) {
  if (bytes <= bytes_) return data_;
  cudaFree(data_);
  data_ = nullptr;
  bytes_ = 0;
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&data_, bytes),
                 absl::StrCat("cudaMalloc of ", bytes, " bytes")));
  bytes_ = bytes;
  return data_;
}

NcclGroup::NcclGroup(Store& store, std::vector<Rank> members, std::string id,
                     const NcclOptions& options)
    : store_(store),
      members_(std::move(members)),
      id_(std::move(id)),
      options_(options),
      rank_(std::find(members_.begin(), members_.end(), store.rank()) -
            members_.begin()) {}

absl::StatusOr<std::shared_ptr<NcclGroup>> NcclGroup::Connect(
    Store& store, std::vector<Rank> members, const std::string& id,
    const NcclOptions& options, int64_t deadline) {
  const std::shared_ptr<NcclGroup> group(
      new NcclGroup(store, std::move(members), id, options));
  TESSERA_RETURN_IF_ERROR(group->Prepare(), Annotate(_, "nccl"));
  ncclUniqueId unique;
  TESSERA_RETURN_IF_ERROR(group->Meet(deadline, unique), Annotate(_, "nccl"));
  TESSERA_RETURN_IF_ERROR(group->Initialise(unique, deadline),
                          Annotate(_, "nccl"));
  return group;
}

absl::StatusOr<std::shared_ptr<NcclGroup>> NcclGroup::Subgroup(
    std::span<const Rank> members, uint32_t group, int64_t deadline) {
  TESSERA_RETURN_IF_ERROR(failure_.status());
  std::vector<Rank> in_job;
  for (Rank member : members) {
    in_job.push_back(members_[static_cast<size_t>(member.value())]);
  }
  const std::string id = SubgroupId(id_, in_job, group);
  return Connect(store_, std::move(in_job), id, options_, deadline);
}

// Sets up the device, the stream and the event.
absl::Status NcclGroup::Prepare() {
  int device = 0;
  if (options_.device.has_value()) {
    device = *options_.device;
  } else {
    TESSERA_RETURN_IF_ERROR(
        CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
    options_.device = device;
  }
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device),
                                     absl::StrCat("cudaSetDevice ", device)));
  if (options_.stream.has_value()) {
    stream_ = *options_.stream;
  } else {
    TESSERA_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                   "cudaStreamCreateWithFlags"));
  }
  return CudaStatus(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
                    "cudaEventCreateWithFlags");
}

// The first rank's text begins with NCCL's unique id.
absl::Status NcclGroup::Meet(int64_t deadline, ncclUniqueId& unique) {
  std::string mine;
  if (rank_ == Rank(0)) {
    TESSERA_RETURN_IF_ERROR(
        NcclStatus(ncclGetUniqueId(&unique), "ncclGetUniqueId"));
    mine = std::string(unique.internal, sizeof(unique.internal));
  }
  absl::StrAppend(&mine, PeerTable::DescribeSelf());
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      AllGather(store_, members_, absl::StrCat("tessera/nccl/", id_), mine,
                TimeOfDeadline(deadline)));
  if (all.front().size() < sizeof(unique.internal)) {
    return absl::InternalError("the first rank sent no NCCL id");
  }
  std::memcpy(unique.internal, all.front().data(), sizeof(unique.internal));
  all.front().erase(0, sizeof(unique.internal));
  peers_ = PeerTable::Of(all);
  return absl::OkStatus();
}

absl::Status NcclGroup::Initialise(const ncclUniqueId& unique,
                                   int64_t deadline) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result =
      ncclCommInitRankConfig(&comm_, static_cast<int>(size()), unique,
                             static_cast<int>(rank_.value()), &config);
  return AwaitComm(result, "ncclCommInitRankConfig", deadline, [] {
    return absl::DeadlineExceededError(
        "ncclCommInitRankConfig: the ranks met, but did not connect by the "
        "deadline");
  });
}

NcclGroup::~NcclGroup() {
  if (options_.device.has_value()) cudaSetDevice(*options_.device);
  if (comm_ != nullptr && !failure_.failed()) {
    constexpr int64_t kPatience = 5'000'000'000;
    const absl::Status finalized = AwaitComm(
        ncclCommFinalize(comm_), "ncclCommFinalize",
        MonotonicNanos() + kPatience,
        [] { return absl::DeadlineExceededError("ncclCommFinalize"); });
    if (finalized.ok()) {
      ncclCommDestroy(comm_);
      comm_ = nullptr;
    }
  }
  TearDown();
  if (event_ != nullptr) cudaEventDestroy(event_);
  if (stream_ != nullptr && !options_.stream.has_value()) {
    cudaStreamDestroy(stream_);
  }
}

void NcclGroup::TearDown() {
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

absl::Status NcclGroup::AwaitComm(ncclResult_t result, const char* call,
                                  int64_t deadline,
                                  const std::function<absl::Status()>& late) {
  Backoff backoff(/*may_spin=*/true);
  absl::Status status;
  while (true) {
    if (result == ncclSuccess) return absl::OkStatus();
    status = NcclStatus(result, call, ncclGetLastError(comm_));
    if (!status.ok()) break;
    if (backoff.Pause() != Backoff::Stage::kSpinning) {
      status = failure_.status();
      if (status.ok() && MonotonicNanos() >= deadline) status = late();
      if (!status.ok()) break;
    }
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  TearDown();
  failure_.Set(status);
  return status;
}

absl::Status NcclGroup::Run(const char* call, OperationContext& context,
                            const std::function<ncclResult_t()>& enqueue) {
  TESSERA_RETURN_IF_ERROR(failure_.status());
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(*options_.device), "cudaSetDevice"));
  ncclGroupStart();
  const ncclResult_t enqueued = enqueue();
  const ncclResult_t ended = ncclGroupEnd();
  const bool refused = enqueued != ncclSuccess && enqueued != ncclInProgress;
  TESSERA_RETURN_IF_ERROR(
      AwaitComm(refused ? enqueued : ended, call, context.deadline(),
                [&] { return peers_.Missing(context, rank_); }));
  return AwaitStream(call, context);
}

absl::Status NcclGroup::AwaitStream(const char* call,
                                    OperationContext& context) {
  absl::Status status =
      CudaStatus(cudaEventRecord(event_, stream_), "cudaEventRecord");
  if (status.ok()) status = AwaitEvent(call, context);
  if (status.ok()) return status;
  TearDown();
  failure_.Set(status);
  return status;
}

absl::Status NcclGroup::AwaitEvent(const char* call,
                                   OperationContext& context) {
  Backoff backoff(/*may_spin=*/true);
  while (true) {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaSuccess) return absl::OkStatus();
    if (state != cudaErrorNotReady) return CudaStatus(state, call);
    if (backoff.Pause() == Backoff::Stage::kSpinning) continue;
    TESSERA_RETURN_IF_ERROR(failure_.status());
    ncclResult_t result = ncclSuccess;
    ncclCommGetAsyncError(comm_, &result);
    TESSERA_RETURN_IF_ERROR(NcclStatus(result, call, ncclGetLastError(comm_)));
    if (context.Expired()) return peers_.Missing(context, rank_);
  }
}

}  // namespace tessera::collectives
