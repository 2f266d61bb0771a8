// MeshSizes: the sizes of the axes of a training mesh, parsed from the text of
// --mesh.
#ifndef TESSERA_TOPOLOGY_CONFIG_MESH_SIZES_H_
#define TESSERA_TOPOLOGY_CONFIG_MESH_SIZES_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/mesh.h"

namespace tessera::topology {

enum class MeshAxis { kTp, kCp, kDp, kPp };

// The axes of a training mesh, fastest-varying first.
using AxisOrder = std::array<MeshAxis, 4>;

// Tensor ranks are next to each other, then come context, data and pipeline
// ranks.
inline constexpr AxisOrder kDefaultAxisOrder = {MeshAxis::kTp, MeshAxis::kCp,
                                                MeshAxis::kDp, MeshAxis::kPp};

// "tp", "cp", "dp", "pp".
std::string_view MeshAxisName(MeshAxis axis);

// "tp-cp-dp-pp".
std::string FormatAxisOrder(const AxisOrder& order);

// Sizes of the axes of a training mesh, and the order in which they number the
// ranks; what --mesh and --order give.
//
//   TESSERA_ASSIGN_OR_RETURN(MeshSizes sizes, MeshSizes::Parse("dp2,tp4"));
//   sizes.world_size();                              // 8
//   TESSERA_ASSIGN_OR_RETURN(Mesh mesh, sizes.MakeMesh());
//   mesh.GroupsAlong("cp,dp");          // the ranks that sum gradients
struct MeshSizes {
  static constexpr int64_t kMaxRanks = int64_t{1} << 20;

  int64_t dp = 1;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t tp = 1;
  // Hybrid sharding: dp = dp_replicate x dp_shard, the ranks of a shard group
  // nearest to each other. Model state is sharded over dp_shard x cp ranks and
  // replicated over dp_replicate. Divides dp.
  int64_t dp_replicate = 1;
  // Expert parallelism: cp x dp = ep x edp, the ranks of an expert group
  // nearest to each other. Each rank holds some of a layer's experts, whose
  // state is sharded over the edp ranks that hold the same experts. Divides cp
  // x dp.
  int64_t ep = 1;
  AxisOrder order = kDefaultAxisOrder;

  int64_t dp_shard() const { return dp / dp_replicate; }
  int64_t shard_ranks() const { return dp_shard() * cp; }
  int64_t edp() const { return dp * cp / ep; }
  int64_t world_size() const { return dp * pp * cp * tp; }
  int64_t SizeOf(MeshAxis axis) const;
  // The distance in ranks between neighbours along the axis.
  int64_t StrideOf(MeshAxis axis) const;

  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;

  // Axes dp, pp, cp, tp and ep in any order, each at most once and with a size
  // of 1 or more; absent axes have size 1. The two parts of dp, dp_replicate
  // and dp_shard, may be given instead of dp or in addition. Without
  // dp_replicate, dp ranks share one copy of the model state. InvalidArgument
  // for any other text, for parts that do not multiply to dp, and as Validate.
  static absl::StatusOr<MeshSizes> Parse(std::string_view text);

  // Every axis: "dp2,pp1,cp1,tp4", and ep if it is not 1. Parse restores it.
  std::string ToString() const;
  // The value of the flag: "dp2,tp4"; axes of size 1 are omitted. Parse
  // restores it.
  std::string ToFlag() const;

  // InvalidArgument, in one line, for a size below 1, a dp_replicate that does
  // not divide dp, an ep that does not divide cp x dp, and more than kMaxRanks
  // ranks.
  absl::Status Validate() const;

  // Reads names joined by "-", fastest-varying first, such as "tp-cp-dp-pp".
  // Axes of size 1 may be omitted; they keep their positions in the default
  // order. InvalidArgument as OrderAxes.
  absl::StatusOr<AxisOrder> ParseOrder(std::string_view text) const;

  // The mesh with axes tp, cp, dp and pp in their order; also dp_shard and
  // dp_replicate if there are replicas, and ep and edp with expert parallelism.
  // InvalidArgument as Validate, and for an order in which another axis divides
  // the ranks of an expert group unevenly.
  absl::StatusOr<Mesh> MakeMesh() const;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_MESH_SIZES_H_
