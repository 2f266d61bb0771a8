// GroupManager: the communicators of a rank's groups on a mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(world, mesh));
//   groups->AllReduce("dp", Buffer(std::span(gradient)), Reduction::Average());
//   TESSERA_ASSIGN_OR_RETURN(Communicator* tp, groups->Group("tp"));
//   if (!groups->IsLastStage()) {
//     groups->SendToNextStage(ConstBuffer(std::span(activations)));
//   }
//
// Groups are independent: they share no traffic, order or errors. Members are
// ordered by their coordinates along the axes.
//
// Threads: Group is thread-safe. The first call for a group creates it, which
// is a collective over its members.
#ifndef TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_
#define TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "topology/groups.h"
#include "topology/mesh.h"

namespace tessera::collectives {

struct GroupOptions {
  // The axis of the pipeline's stages, if the mesh has it.
  std::string pipeline_axis = "pp";
};

class GroupManager {
 public:
  // Creates the groups along each single axis of `mesh`. A collective over
  // `world`, whose rank 0 is mesh.first_rank(). `world` must outlive the
  // manager. InvalidArgument if mesh and world differ in size.
  static absl::StatusOr<std::unique_ptr<GroupManager>> Create(
      Communicator& world, topology::Mesh mesh, GroupOptions options = {});

  const topology::Mesh& mesh() const { return mesh_; }
  Communicator& world() { return world_; }

  // This rank's number in the mesh.
  Rank mesh_rank() const { return mesh_.first_rank() + world_.rank().value(); }

  // This rank's group along a set of axes: "tp", "dp,cp". Its name is
  // topology::GroupName. Errors as Mesh::GroupsAlong.
  absl::StatusOr<Communicator*> Group(std::string_view axes);

  // The group with a name such as "tp_group_dp1_pp0". InvalidArgument if the
  // mesh has no such group or this rank is not a member.
  absl::StatusOr<Communicator*> GroupNamed(std::string_view name);

  // The group of the first and the last rank along `axis` (along the pipeline:
  // the stages with a tied embedding). Null if this rank is neither, or both
  // are the same.
  absl::StatusOr<Communicator*> EndsGroup(std::string_view axis);

  // Collectives in this rank's group along `axes`.
  absl::Status AllReduce(std::string_view axes, Buffer buffer,
                         Reduction reduction, const CallOptions& call = {});
  absl::Status AllGather(std::string_view axes, ConstBuffer input,
                         Buffer output, const CallOptions& call = {});
  absl::Status ReduceScatter(std::string_view axes, ConstBuffer input,
                             Buffer output, Reduction reduction,
                             const CallOptions& call = {});

  // The pipeline; one stage if the mesh has no pipeline axis.
  int64_t stage() const { return stage_; }
  int64_t stages() const { return stages_; }
  bool IsFirstStage() const { return stage_ == 0; }
  bool IsLastStage() const { return stage_ == stages_ - 1; }

  // The rank of the pipeline group `steps` stages further (negative: back).
  // kOpen: InvalidArgument beyond the ends. kCyclic: wraps around, as
  // interleaved schedules need.
  absl::StatusOr<Rank> StageAt(
      int64_t steps,
      topology::Boundary boundary = topology::Boundary::kOpen) const;

  absl::Status SendToNextStage(
      ConstBuffer input,
      topology::Boundary boundary = topology::Boundary::kOpen,
      const CallOptions& call = {});
  absl::Status SendToPrevStage(
      ConstBuffer input,
      topology::Boundary boundary = topology::Boundary::kOpen,
      const CallOptions& call = {});
  absl::Status ReceiveFromNextStage(
      Buffer output, topology::Boundary boundary = topology::Boundary::kOpen,
      const CallOptions& call = {});
  absl::Status ReceiveFromPrevStage(
      Buffer output, topology::Boundary boundary = topology::Boundary::kOpen,
      const CallOptions& call = {});

  // The pipeline's communicator, for non-blocking messages:
  //   groups.pipeline().Start(SendOf(x, *groups.StageAt(+1)))
  // Requires more than one stage.
  absl::StatusOr<Communicator*> pipeline();

 private:
  GroupManager(Communicator& world, topology::Mesh mesh, GroupOptions options)
      : world_(world), mesh_(std::move(mesh)), options_(std::move(options)) {}

  absl::Status FindStages();
  absl::StatusOr<Communicator*> GroupOf(std::span<const topology::Rank> members,
                                        const std::string& name);

  Communicator& world_;
  const topology::Mesh mesh_;
  const GroupOptions options_;
  int64_t stage_ = 0;
  int64_t stages_ = 1;

  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<Communicator>> groups_;
  absl::flat_hash_map<std::string, Communicator*>
      by_axes_;  // By the axes as requested.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_
