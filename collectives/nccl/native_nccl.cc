#include "collectives/nccl/native_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/device/cuda_library.h"
#include "base/device/cuda_status.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

// The functions of NCCL. Load sets them, so calls by the library's names in
// this file call the loaded library.
// clang-format off
#define TESSERA_NCCL_CALLS(CALL) \
  CALL(ncclAllGather) \
  CALL(ncclAllReduce) \
  CALL(ncclBroadcast) \
  CALL(ncclCommAbort) \
  CALL(ncclCommDeregister) \
  CALL(ncclCommDestroy) \
  CALL(ncclCommFinalize) \
  CALL(ncclCommGetAsyncError) \
  CALL(ncclCommInitRankConfig) \
  CALL(ncclCommRegister) \
  CALL(ncclGetLastError) \
  CALL(ncclGetUniqueId) \
  CALL(ncclGroupEnd) \
  CALL(ncclGroupStart) \
  CALL(ncclMemAlloc) \
  CALL(ncclMemFree) \
  CALL(ncclRecv) \
  CALL(ncclRedOpCreatePreMulSum) \
  CALL(ncclRedOpDestroy) \
  CALL(ncclReduce) \
  CALL(ncclReduceScatter) \
  CALL(ncclSend)
// clang-format on

#define TESSERA_CALL(name) decltype(&::name) name = nullptr;
TESSERA_NCCL_CALLS(TESSERA_CALL)
#undef TESSERA_CALL

absl::Status Load() {
  TESSERA_ASSIGN_OR_RETURN(
      const SharedLibrary* const library,
      OpenCudaLibrary(absl::StrCat("libnccl.so.", NCCL_MAJOR)));
#define TESSERA_CALL(name) \
  TESSERA_RETURN_IF_ERROR(library->Require(#name, name));
  TESSERA_NCCL_CALLS(TESSERA_CALL)
#undef TESSERA_CALL
  return absl::OkStatus();
}

#undef TESSERA_NCCL_CALLS

template <typename Ours, typename Theirs>
constexpr bool Same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(Same(NcclResult::kSuccess, ncclSuccess) &&
              Same(NcclResult::kUnhandledCudaError, ncclUnhandledCudaError) &&
              Same(NcclResult::kSystemError, ncclSystemError) &&
              Same(NcclResult::kInternalError, ncclInternalError) &&
              Same(NcclResult::kInvalidArgument, ncclInvalidArgument) &&
              Same(NcclResult::kInvalidUsage, ncclInvalidUsage) &&
              Same(NcclResult::kRemoteError, ncclRemoteError) &&
              Same(NcclResult::kInProgress, ncclInProgress));
static_assert(Same(NcclType::kInt8, ncclInt8) &&
              Same(NcclType::kUint8, ncclUint8) &&
              Same(NcclType::kInt32, ncclInt32) &&
              Same(NcclType::kInt64, ncclInt64) &&
              Same(NcclType::kFloat16, ncclFloat16) &&
              Same(NcclType::kFloat32, ncclFloat32) &&
              Same(NcclType::kFloat64, ncclFloat64) &&
              Same(NcclType::kBfloat16, ncclBfloat16));
static_assert(Same(NcclOp::kSum, ncclSum) && Same(NcclOp::kProd, ncclProd) &&
              Same(NcclOp::kMax, ncclMax) && Same(NcclOp::kMin, ncclMin) &&
              Same(NcclOp::kAvg, ncclAvg));
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));

NcclResult From(ncclResult_t result) { return static_cast<NcclResult>(result); }
ncclComm_t To(NcclComm comm) { return static_cast<ncclComm_t>(comm); }

template <typename... Theirs, typename... Ours>
NcclResult CallWith(ncclResult_t (*function)(Theirs...), Ours... ours) {
  return From(function(static_cast<Theirs>(ours)...));
}

// A function of NCCL with the types of NcclApi, in the same order.
template <auto& kFunction, typename... Ours>
NcclResult Call(Ours... ours) {
  return CallWith(kFunction, ours...);
}

absl::StatusOr<NcclStream> StreamOf(Queue& queue) {
  if (void* const stream = queue.native_handle(); stream != nullptr) {
    return stream;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("nccl: device ", queue.device().name(),
                   " has no CUDA streams; give a CUDA device"));
}

absl::Status UseDevice(Device& device) {
  return CudaStatus(cudaSetDevice(device.memory()->device_ordinal()),
                    "cudaSetDevice");
}

NcclResult CommInit(NcclComm* comm, int ranks, const NcclUniqueId& id, int rank,
                    int most_blocks) {
  // Connects rings and trees here, so that the host does not wait for other
  // ranks in a collective.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*replace=*/0);
  ncclUniqueId unique;
  std::memcpy(&unique, id.bytes.data(), sizeof(unique));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (most_blocks > 0) config.maxCTAs = most_blocks;
  ncclComm_t created = nullptr;
  const ncclResult_t result =
      ncclCommInitRankConfig(&created, ranks, unique, rank, &config);
  *comm = created;
  return From(result);
}

NcclResult GetUniqueId(NcclUniqueId* id) {
  ncclUniqueId unique;
  const ncclResult_t result = ncclGetUniqueId(&unique);
  std::memcpy(id->bytes.data(), &unique, sizeof(unique));
  return From(result);
}

NcclResult CommGetAsyncError(NcclComm comm, NcclResult* result) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(To(comm), &state);
  *result = From(state);
  return From(asked);
}

NcclResult RedOpCreatePreMulSum(NcclOp* op, void* scalar, NcclType type,
                                NcclComm comm) {
  ncclRedOp_t created = ncclSum;
  const ncclResult_t result = ncclRedOpCreatePreMulSum(
      &created, scalar, static_cast<ncclDataType_t>(type),
      ncclScalarHostImmediate, To(comm));
  *op = static_cast<NcclOp>(created);
  return From(result);
}

constexpr NcclApi kNative = {
    .StreamOf = StreamOf,
    .UseDevice = UseDevice,
    .LastError =
        [](NcclComm comm) {
          const char* const text = ncclGetLastError(To(comm));
          return std::string(text == nullptr ? "" : text);
        },
    .GetUniqueId = GetUniqueId,
    .CommInit = CommInit,
    .CommGetAsyncError = CommGetAsyncError,
    .CommFinalize = Call<ncclCommFinalize>,
    .CommDestroy = Call<ncclCommDestroy>,
    .CommAbort = Call<ncclCommAbort>,
    .GroupStart = Call<ncclGroupStart>,
    .GroupEnd = Call<ncclGroupEnd>,
    .AllReduce = Call<ncclAllReduce>,
    .Reduce = Call<ncclReduce>,
    .Broadcast = Call<ncclBroadcast>,
    .ReduceScatter = Call<ncclReduceScatter>,
    .AllGather = Call<ncclAllGather>,
    .Send = Call<ncclSend>,
    .Recv = Call<ncclRecv>,
    .RedOpCreatePreMulSum = RedOpCreatePreMulSum,
    .RedOpDestroy = Call<ncclRedOpDestroy>,
    .MemAlloc = [](Device&, void** data,
                   size_t bytes) { return From(ncclMemAlloc(data, bytes)); },
    .MemFree = [](Device&, void* data,
                  size_t) { return From(ncclMemFree(data)); },
    .CommRegister = Call<ncclCommRegister>,
    .CommDeregister = Call<ncclCommDeregister>,
};

}  // namespace

absl::StatusOr<const NcclApi*> NativeNccl() {
  static const absl::Status loaded = Load();
  TESSERA_RETURN_IF_ERROR(loaded);
  return &kNative;
}

}  // namespace tessera::collectives
