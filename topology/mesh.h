// Mesh: ranks on a grid of named axes.
#ifndef TESSERA_TOPOLOGY_MESH_H_
#define TESSERA_TOPOLOGY_MESH_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/axis.h"
#include "topology/groups.h"
#include "topology/rank.h"

namespace tessera::topology {

// One coordinate for each axis of a mesh, in the order of Mesh::axes().
using Coordinates = absl::InlinedVector<int64_t, 8>;

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(auto axes, ParseAxes("dp2,pp2,tp2"));
//   TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create(axes, "tp-cp-ep-dp-pp"));
//   mesh.CoordinateOf(Rank(5), "pp");      // 1
//   mesh.GroupsAlong("dp,tp");             // groups along two axes at once
//
// The order says which axis varies fastest: with sizes s0, s1, ... fastest
// first, rank = first_rank + c0 + c1 * s0 + c2 * s0 * s1 + ... A mesh is a
// small value: copying is cheap, everything for one rank is O(axes), and the
// grid is never built. Const methods may be called from any thread.
//
// The same ranks can be divided in more than one way. Redivide adds a division
// in which new axes replace some, and keeps the first:
//
//   mesh.Redivide("dp", {{"dp_shard", 4}, {"dp_replicate", 2}})  // hybrid
//   mesh.Redivide("tp,cp,dp", {{"etp", 1}, {"ep", 8}, {"edp", 2}})  // experts
//
// Sources: RankGenerator in Megatron-LM, core/parallel_state.py (order strings,
// groups); "GSPMD", arXiv 2105.04663 (meshes with an order).
class Mesh {
 public:
  // A mesh of the axes in the given order, fastest first. The ranks are
  // [first_rank, first_rank + world_size). InvalidArgument as ValidateAxes, and
  // if first_rank is negative or the last rank would exceed 2^63-1.
  static absl::StatusOr<Mesh> Create(std::span<const Axis> axes,
                                     Rank first_rank = Rank(0));

  // The same after OrderAxes(axes, order).
  static absl::StatusOr<Mesh> Create(std::span<const Axis> axes,
                                     std::string_view order,
                                     Rank first_rank = Rank(0));

  Rank first_rank() const { return first_rank_; }
  int64_t world_size() const { return world_size_; }
  bool Contains(Rank rank) const {
    return rank >= first_rank_ && rank - first_rank_ < world_size_;
  }

  // The axes of the first division, fastest first.
  std::span<const Axis> axes() const { return divisions_[0].axes; }

  // Their names, joined by "-": "tp-dp-pp".
  std::string order() const;

  // A mesh with one more division of the same ranks: in the first division that
  // has all of `axes` ("dp" or "tp,cp,dp"), `parts` replace them and divide
  // their coordinates, fastest first. Both the parts and the old axes can be
  // used by name. InvalidArgument if an axis is unknown, a part's name is
  // taken, the sizes do not multiply to those of `axes`, or another axis lies
  // between `axes` and a part would span it unevenly.
  absl::StatusOr<Mesh> Redivide(std::string_view axes,
                                std::span<const Axis> parts) const;

  // The number of divisions, and the axes of each. Division 0 is axes().
  size_t division_count() const { return divisions_.size(); }
  std::span<const Axis> division(size_t number) const {
    return divisions_[number].axes;
  }

  // The size of an axis of any division. InvalidArgument, listing the existing
  // axes, if there is no such axis.
  absl::StatusOr<AxisSize> SizeOf(std::string_view axis) const;

  // The coordinates of a rank along axes(), and the rank at coordinates.
  // InvalidArgument if the rank or a coordinate lies outside, or there are
  // not as many coordinates as axes.
  absl::StatusOr<Coordinates> CoordinatesOf(Rank rank) const;
  absl::StatusOr<Rank> RankAt(std::span<const int64_t> coordinates) const;

  // The rank's coordinate along one axis of any division.
  absl::StatusOr<int64_t> CoordinateOf(Rank rank, std::string_view axis) const;

  // The groups along a set of axes, "tp" or "dp,cp" or "dp-cp", all of one
  // division. InvalidArgument if an axis is unknown or no division has all of
  // them.
  absl::StatusOr<Groups> GroupsAlong(std::string_view axes) const;
  absl::StatusOr<Groups> GroupsAlong(std::span<const std::string> axes) const;

  // The number of the first division that has all of `axes`. InvalidArgument as
  // GroupsAlong.
  absl::StatusOr<size_t> DivisionWith(std::span<const std::string> axes) const;

 private:
  // Axes that tile the world, each with its digits of a rank's offset.
  struct Division {
    std::vector<Axis> axes;
    std::vector<Digits> digits;
  };

  Mesh() = default;

  absl::Status CheckRank(Rank rank) const;
  absl::Status UnknownAxis(std::string_view axis) const;
  const Digits* FindAxis(std::string_view axis) const;
  Groups MakeGroups(const Division& division,
                    std::span<const std::string> axes) const;

  Rank first_rank_;
  int64_t world_size_ = 1;
  std::vector<Division> divisions_;
};

// An axis order that a system of the field uses:
//
//   Mesh::Create(axes, FindPreset("megatron")->order)   // "tp-cp-ep-dp-pp"
struct Preset {
  std::string_view name;
  std::string_view order;        // Fastest first, as OrderAxes takes it.
  std::string_view description;  // The systems that use it.
};

// All presets, the default first.
std::span<const Preset> Presets();

// The preset of that name. NotFound, listing the valid names, if there is none.
absl::StatusOr<Preset> FindPreset(std::string_view name);

// Adds an expert division to `mesh`. Its axes dp, cp and tp (those that exist)
// are replaced by etp (tensor parallelism inside an expert, fastest), ep
// (expert parallelism) and edp (replicas of an expert, slowest; the rest of the
// product), as in Megatron-LM's "MoE Parallel Folding", arXiv 2504.14960. Dense
// layers still use dp, cp and tp. InvalidArgument, with the valid sizes, if etp
// * ep does not divide the product.
//
//   TESSERA_ASSIGN_OR_RETURN(Mesh moe, WithExpertAxes(mesh, AxisSize(8)));
//   moe.GroupsAlong("ep");
//   moe.GroupsAlong("edp");
absl::StatusOr<Mesh> WithExpertAxes(const Mesh& mesh, AxisSize ep,
                                    AxisSize etp = AxisSize(1));

// The name of the group of `rank` along `axes`, for logs and traces:
// "tp_group_dp1_pp0" or, along several, "dp-cp_group_tp0_pp1". It consists of
// the axes and the group's coordinates along the other axes of their division,
// so it is unique in the mesh, the same on every member, and independent of the
// mesh's order. Axes follow CanonicalAxisLess. A group of the whole division,
// which has no other axes, is "dp-tp-pp_group". InvalidArgument as
// Mesh::GroupsAlong, and if the mesh has no such rank.
absl::StatusOr<std::string> GroupName(const Mesh& mesh, std::string_view axes,
                                      Rank rank);

// The sizes of the mesh's axes and the rank, for logs and traces: TP, CP, PP
// and DP always (1 if the mesh has none), then the mesh's other axes in its
// order.
std::string DescribeRank(const Mesh& mesh, Rank rank);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_MESH_H_
