// NCCL's types, operators and errors for ours.
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

// The type of the same elements. fp8 elements are bytes: they are only moved.
ncclDataType_t NcclTypeOf(DType dtype);

// NCCL's operator. A scaled sum has none of its own: NCCL makes one for each
// factor (ncclRedOpCreatePreMulSum); this is the sum behind it.
ncclRedOp_t NcclOpOf(ReduceOp op);

// `value` as one element of a reducible type, as NCCL takes a factor.
std::array<std::byte, 8> ScalarOf(DType dtype, double value);

// OK, or the error: InvalidArgument for a call that NCCL refuses, Unavailable
// for a peer or network that is gone, Internal otherwise. `detail` is NCCL's
// last message, if any. ncclInProgress is OK.
absl::Status NcclStatus(ncclResult_t result, std::string_view call,
                        std::string_view detail = "");

// FailedPrecondition where there is no GPU or no fitting driver,
// ResourceExhausted for memory, Internal otherwise.
absl::Status CudaStatus(cudaError_t error, std::string_view call);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_TYPES_H_
