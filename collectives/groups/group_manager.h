// GroupManager: a communicator for every group that a rank has on a mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(world, mesh));
//   groups->AllReduce("dp", Buffer(std::span(gradient)), Reduction::Average());
//   TESSERA_ASSIGN_OR_RETURN(Communicator* tp, groups->Group("tp"));
//   if (!groups->IsLastStage()) {
//     groups->SendToNextStage(ConstBuffer(std::span(activations)));
//   }
//
// Each group is one of its own: no group shares another's traffic, order or
// errors. Members are in the order of their coordinates along the axes.
//
// Threads: Group may be called from any thread; a group that does not exist yet
// is created by the first call, which is a collective over its members.
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
  // The axis along which the pipeline's stages lie, if the mesh has it.
  std::string pipeline_axis = "pp";
};

class GroupManager {
 public:
  // The groups of `mesh`, whose ranks, in order, are those of `world`: rank 0
  // of the world is mesh.first_rank(). A collective over the world; creates the
  // groups along each single axis. `world` outlives the manager.
  // InvalidArgument where mesh and world differ in size.
  static absl::StatusOr<std::unique_ptr<GroupManager>> Create(
      Communicator& world, topology::Mesh mesh, GroupOptions options = {});

  const topology::Mesh& mesh() const { return mesh_; }
  Communicator& world() { return world_; }

  // This rank in the mesh.
  Rank mesh_rank() const { return mesh_.first_rank() + world_.rank().value(); }

  // This rank's group along a set of axes: "tp", "dp,cp". Named as
  // topology::GroupName names it. InvalidArgument as Mesh::GroupsAlong.
  absl::StatusOr<Communicator*> Group(std::string_view axes);

  // The group of that name ("tp_group_dp1_pp0"). InvalidArgument where the mesh
  // has none of that name or this rank is not in it.
  absl::StatusOr<Communicator*> GroupNamed(std::string_view name);

  // The first and the last rank along `axis` (along the pipeline: the stages
  // that hold a tied embedding). Null where this rank is neither, or both are
  // one.
  absl::StatusOr<Communicator*> EndsGroup(std::string_view axis);

  // Collectives over this rank's group along `axes`.
  absl::Status AllReduce(std::string_view axes, Buffer buffer,
                         Reduction reduction, const CallOptions& call = {});
  absl::Status AllGather(std::string_view axes, ConstBuffer input,
                         Buffer output, const CallOptions& call = {});
  absl::Status ReduceScatter(std::string_view axes, ConstBuffer input,
                             Buffer output, Reduction reduction,
                             const CallOptions& call = {});

  // The pipeline. A mesh without the pipeline axis has one stage.
  int64_t stage() const { return stage_; }
  int64_t stages() const { return stages_; }
  bool IsFirstStage() const { return stage_ == 0; }
  bool IsLastStage() const { return stage_ == stages_ - 1; }

  // The rank of the pipeline group that is `steps` stages further (negative:
  // back). Open: InvalidArgument beyond the ends. Cyclic: around, as
  // interleaved schedules send from the last rank to the first.
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

  // The pipeline's communicator, for started messages:
  //   groups.pipeline().Start(SendOf(x, *groups.StageAt(+1)))
  // InvalidArgument where there is one stage.
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
  absl::flat_hash_map<std::string, Communicator*> by_axes_;  // As they were
                                                             // asked for.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_
