// GroupManager: the communicators of a rank's groups on a mesh, and the stages
// of its pipeline.
//
//   TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(world, mesh));
//   TESSERA_ASSIGN_OR_RETURN(Communicator* dp, groups->Group("dp"));
//   dp->AllReduce(Buffer(std::span(gradient)), Reduction::Average());
//   groups->Run("tp", AllGatherOf(own, all));
//   if (!groups->IsLastStage()) groups->SendToNextStage(activations, micro);
//
// Groups are independent: they share no traffic, order or errors. Members are
// ordered by their coordinates along the axes. If the world is on a device, so
// are its groups, each with its own host().
//
// Threads: thread-safe. The first call for a group creates it, which is a
// collective over its members.
#ifndef TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_
#define TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
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

class GroupManager {
 public:
  // Creates the groups along each single axis of `mesh`. A collective over
  // `world`, whose rank 0 is mesh.first_rank(). `world` must outlive the
  // manager. The stages of the pipeline lie along `pipeline_axis`; a mesh
  // without this axis has one stage. InvalidArgument if mesh and world differ
  // in size.
  static absl::StatusOr<std::unique_ptr<GroupManager>> Create(
      Communicator& world, topology::Mesh mesh,
      std::string pipeline_axis = "pp");

  const topology::Mesh& mesh() const { return mesh_; }
  Communicator& world() { return world_; }

  // This rank's number in the mesh.
  Rank mesh_rank() const { return mesh_.first_rank() + world_.rank().value(); }

  // This rank's group along a set of axes: "tp", "dp,cp". Its name is
  // topology::GroupName. Errors as Mesh::GroupsAlong.
  absl::StatusOr<Communicator*> Group(std::string_view axes);

  // This rank's group with a name such as "tp_group_dp1_pp0". InvalidArgument
  // if the mesh has no such group or this rank is not a member of it.
  absl::StatusOr<Communicator*> GroupNamed(std::string_view name);

  // The group of the first and the last rank along `axes`: along the pipeline,
  // the stages that hold the two copies of a tied embedding. Null on the ranks
  // between them, and if both are the same rank.
  absl::StatusOr<Communicator*> EndsGroup(std::string_view axes);

  // Executes an operation in this rank's group along `axes`. The strategy of
  // the world's CommunicatorOptions::chooser, or call.algorithm, selects the
  // algorithm.
  absl::Status Run(std::string_view axes, const Operation& operation,
                   const CallOptions& call = {});

  // This rank's stage of the pipeline, from 0 to stages() - 1.
  int64_t stage() const { return stage_; }
  int64_t stages() const { return stages_; }
  bool IsFirstStage() const { return stage_ == 0; }
  bool IsLastStage() const { return stage_ == stages_ - 1; }

  // The ranks of the next and the previous stage in the pipeline's group, for
  // operations on Group(pipeline axis). InvalidArgument at the ends.
  absl::StatusOr<Rank> NextStage() const;
  absl::StatusOr<Rank> PreviousStage() const;

  // Blocking messages between neighbouring stages. A message with a
  // `micro_batch` is received by its number, in any order (a tag, Unimplemented
  // on engines without tags); others are received in the order in which they
  // were sent. Activations and gradients have opposite directions and do not
  // mix. InvalidArgument at the ends of the pipeline.
  absl::Status SendToNextStage(ConstBuffer activations,
                               int32_t micro_batch = kNoTag,
                               const CallOptions& call = {});
  absl::Status ReceiveFromPreviousStage(Buffer activations,
                                        int32_t micro_batch = kNoTag,
                                        const CallOptions& call = {});
  absl::Status SendToPreviousStage(ConstBuffer gradients,
                                   int32_t micro_batch = kNoTag,
                                   const CallOptions& call = {});
  absl::Status ReceiveFromNextStage(Buffer gradients,
                                    int32_t micro_batch = kNoTag,
                                    const CallOptions& call = {});

  // Communicator::StatisticsWithSubgroups of every group created so far, by
  // its name.
  std::map<std::string, StatisticsTable> Statistics();

 private:
  GroupManager(Communicator& world, topology::Mesh mesh,
               std::string pipeline_axis)
      : world_(world),
        mesh_(std::move(mesh)),
        pipeline_axis_(std::move(pipeline_axis)) {}

  absl::Status FindStage();
  absl::Status NoStage(std::string_view direction, std::string_view end) const;
  absl::StatusOr<Communicator*> GroupOf(std::span<const topology::Rank> members,
                                        const std::string& name);

  Communicator& world_;
  const topology::Mesh mesh_;
  const std::string pipeline_axis_;
  int64_t stage_ = 0;
  int64_t stages_ = 1;

  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<Communicator>> groups_;
  absl::flat_hash_map<std::string, Communicator*>
      by_axes_;  // By the axes as requested.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_
