// GroupManager: the communicators of a rank's groups on a mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(world, mesh));
//   TESSERA_ASSIGN_OR_RETURN(Communicator* dp, groups->Group("dp"));
//   dp->AllReduce(Buffer(std::span(gradient)), Reduction::Average());
//
// Groups are independent: they share no traffic, order or errors. Members are
// ordered by their coordinates along the axes. If the world is on a device, so
// are its groups, each with its own host().
//
// Threads: Group is thread-safe. The first call for a group creates it, which
// is a collective over its members.
#ifndef TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_
#define TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_

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
  // manager. InvalidArgument if mesh and world differ in size.
  static absl::StatusOr<std::unique_ptr<GroupManager>> Create(
      Communicator& world, topology::Mesh mesh);

  const topology::Mesh& mesh() const { return mesh_; }
  Communicator& world() { return world_; }

  // This rank's number in the mesh.
  Rank mesh_rank() const { return mesh_.first_rank() + world_.rank().value(); }

  // This rank's group along a set of axes: "tp", "dp,cp". Its name is
  // topology::GroupName. Errors as Mesh::GroupsAlong.
  absl::StatusOr<Communicator*> Group(std::string_view axes);

 private:
  GroupManager(Communicator& world, topology::Mesh mesh)
      : world_(world), mesh_(std::move(mesh)) {}

  absl::StatusOr<Communicator*> GroupOf(std::span<const topology::Rank> members,
                                        const std::string& name);

  Communicator& world_;
  const topology::Mesh mesh_;

  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<Communicator>> groups_;
  absl::flat_hash_map<std::string, Communicator*>
      by_axes_;  // By the axes as requested.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_GROUP_MANAGER_H_
