// The operations of ops/router.h on the CPU.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ROUTER_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ROUTER_H_

#include "absl/status/status.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

// Route and RouteGradient process some of the tokens. The callers check the
// arguments.
void RouteTokens(const op::Route& call, IndexRange tokens);
void RouteTokensGradient(const op::RouteGradient& call, IndexRange tokens);

// Internal if an expert does not exist.
absl::Status GroupRowsByExpert(const op::GroupByExpert& call);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ROUTER_H_
