// NcclApi: the functions of NCCL and CUDA that the engine calls, as a table.
//
// NativeNccl() is NVIDIA's library; tests give the engine a stand-in over an
// emulated device (nccl_stand_in.h). This header needs neither CUDA nor NCCL:
// native_nccl.cc checks that the values below are equal to nccl.h's.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_API_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_API_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

// ncclResult_t.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDataType_t.
enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// ncclRedOp_t. Operators that NCCL creates have other values.
enum class NcclOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

// ncclUniqueId.
struct NcclUniqueId {
  std::array<char, 128> bytes = {};
};

using NcclComm = void*;    // ncclComm_t.
using NcclStream = void*;  // cudaStream_t.

// Functions with the names and contracts of NCCL's, on communicators that do
// not block (ncclConfig_t::blocking is 0). Any thread may call them, but only
// one thread at a time for each communicator.
struct NcclApi {
  // The stream of a queue; InvalidArgument if the device is another's.
  absl::StatusOr<NcclStream> (*StreamOf)(Queue& queue);
  // Makes the device the current one of the calling thread.
  absl::Status (*UseDevice)(Device& device);

  std::string (*LastError)(NcclComm comm);
  NcclResult (*GetUniqueId)(NcclUniqueId* id);
  // `most_blocks` bounds the thread blocks of a call (maxCTAs); 0: no bound.
  NcclResult (*CommInit)(NcclComm* comm, int ranks, const NcclUniqueId& id,
                         int rank, int most_blocks);
  NcclResult (*CommGetAsyncError)(NcclComm comm, NcclResult* result);
  NcclResult (*CommFinalize)(NcclComm comm);
  NcclResult (*CommDestroy)(NcclComm comm);
  NcclResult (*CommAbort)(NcclComm comm);

  NcclResult (*GroupStart)();
  NcclResult (*GroupEnd)();
  NcclResult (*AllReduce)(const void* send, void* receive, size_t count,
                          NcclType type, NcclOp op, NcclComm comm,
                          NcclStream stream);
  NcclResult (*Reduce)(const void* send, void* receive, size_t count,
                       NcclType type, NcclOp op, int root, NcclComm comm,
                       NcclStream stream);
  NcclResult (*Broadcast)(const void* send, void* receive, size_t count,
                          NcclType type, int root, NcclComm comm,
                          NcclStream stream);
  NcclResult (*ReduceScatter)(const void* send, void* receive,
                              size_t receive_count, NcclType type, NcclOp op,
                              NcclComm comm, NcclStream stream);
  NcclResult (*AllGather)(const void* send, void* receive, size_t send_count,
                          NcclType type, NcclComm comm, NcclStream stream);
  NcclResult (*Send)(const void* send, size_t count, NcclType type, int peer,
                     NcclComm comm, NcclStream stream);
  NcclResult (*Recv)(void* receive, size_t count, NcclType type, int peer,
                     NcclComm comm, NcclStream stream);
  // `scalar` is an element of the type, in host memory.
  NcclResult (*RedOpCreatePreMulSum)(NcclOp* op, void* scalar, NcclType type,
                                     NcclComm comm);
  NcclResult (*RedOpDestroy)(NcclOp op, NcclComm comm);

  NcclResult (*MemAlloc)(Device& device, void** data, size_t bytes);
  NcclResult (*MemFree)(Device& device, void* data, size_t bytes);
  NcclResult (*CommRegister)(NcclComm comm, void* data, size_t bytes,
                             void** handle);
  NcclResult (*CommDeregister)(NcclComm comm, void* handle);
};

// The NCCL type of `dtype`. fp8 maps to bytes, because it is only moved.
NcclType NcclTypeOf(DType dtype);

// NCCL's operator. For a scaled sum this is the sum; RedOpCreatePreMulSum
// creates the operator for each factor.
NcclOp NcclOpOf(ReduceOp op);

// `value` as an element of a reducible type, for NCCL's factor.
std::array<std::byte, 8> ScalarOf(DType dtype, double value);

// Converts NCCL's result: InvalidArgument if NCCL rejects a call, Unavailable
// if a peer or network failed, Internal otherwise; kInProgress is OK. `detail`
// is NCCL's last message, if any.
absl::Status NcclStatus(NcclResult result, std::string_view call,
                        std::string_view detail = "");

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_API_H_
