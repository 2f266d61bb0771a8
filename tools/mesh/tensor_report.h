// TensorReport: the shards of a tensor on the ranks of a mesh, and the way from
// one layout to another, as //tools/mesh --tensor prints them.
#ifndef TESSERA_TOOLS_MESH_TENSOR_REPORT_H_
#define TESSERA_TOOLS_MESH_TENSOR_REPORT_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/sharding/redistribution.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::tools {

// The values of the flags.
struct TensorOptions {
  std::string tensor = "";  // "128x512".
  std::string as = "";      // Empty: replicated.
  std::string to = "";      // Empty: stays as it is.
  DType dtype = DType::kF32;

  bool empty() const { return tensor.empty() && as.empty() && to.empty(); }
};

// Planning takes the square of the number of ranks along the placed axes.
inline constexpr int64_t kMaxPlannedRanks = 1024;

// Shards may be empty. InvalidArgument with the flag, its value and the allowed
// values.
absl::StatusOr<tensor_parallel::RedistributionPlan> MakeTensorReport(
    const topology::Mesh& mesh, const TensorOptions& options);

// Prints the plan's steps, and for each of `ranks` its shards and bytes: as the
// text section for the tensor, and as the value of the JSON key "tensor".
void PrintTensorText(const tensor_parallel::RedistributionPlan& plan,
                     const std::vector<topology::Rank>& ranks,
                     std::ostream& out);
void PrintTensorJson(const tensor_parallel::RedistributionPlan& plan,
                     const std::vector<topology::Rank>& ranks,
                     std::ostream& out);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_TENSOR_REPORT_H_
