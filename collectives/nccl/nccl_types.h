// Maps DType, ReduceOp and errors to NCCL's.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_TYPES_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_TYPES_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

// The NCCL type of `dtype`. fp8 maps to bytes, because it is only moved.
ncclDataType_t NcclTypeOf(DType dtype);

// NCCL's operator. For a scaled sum this is the sum; ncclRedOpCreatePreMulSum
// creates the operator for each factor.
ncclRedOp_t NcclOpOf(ReduceOp op);

// `value` as an element of a reducible type, for NCCL's factor.
std::array<std::byte, 8> ScalarOf(DType dtype, double value);

// Converts NCCL's result: InvalidArgument if NCCL rejects a call, Unavailable
// if a peer or network failed, Internal otherwise; ncclInProgress is OK.
// `detail` is NCCL's last message, if any.
absl::Status NcclStatus(ncclResult_t result, std::string_view call,
                        std::string_view detail = "");

// FailedPrecondition if there is no GPU or matching driver, ResourceExhausted
// if memory is short, Internal otherwise.
absl::Status CudaStatus(cudaError_t error, std::string_view call);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_TYPES_H_
