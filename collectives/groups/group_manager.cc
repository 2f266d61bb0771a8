#include "collectives/groups/group_manager.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "topology/mesh.h"

namespace tessera::collectives {

using topology::Groups;
using topology::Mesh;

absl::StatusOr<std::unique_ptr<GroupManager>> GroupManager::Create(
    Communicator& world, Mesh mesh) {
  if (mesh.world_size() != world.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the mesh has ", mesh.world_size(), " ranks, communicator ",
        world.name(), " has ", world.size(), "; they must be the same"));
  }
  std::unique_ptr<GroupManager> manager(
      new GroupManager(world, std::move(mesh)));
  for (size_t i = 0; i < manager->mesh_.division_count(); ++i) {
    for (const topology::Axis& axis : manager->mesh_.division(i)) {
      TESSERA_RETURN_IF_ERROR(manager->Group(axis.name).status());
    }
  }
  return manager;
}

// Returns the group of these mesh ranks. Requires mutex_.
absl::StatusOr<Communicator*> GroupManager::GroupOf(
    std::span<const topology::Rank> members, const std::string& name) {
  std::unique_ptr<Communicator>& group = groups_[name];
  if (group == nullptr) {
    std::vector<Rank> in_world;
    for (topology::Rank member : members) {
      in_world.push_back(Rank(member - mesh_.first_rank()));
    }
    absl::StatusOr<std::unique_ptr<Communicator>> created =
        world_.Subgroup(in_world, name);
    if (!created.ok()) {
      groups_.erase(name);
      return created.status();
    }
    group = *std::move(created);
  }
  return group.get();
}

absl::StatusOr<Communicator*> GroupManager::Group(std::string_view axes) {
  const std::lock_guard lock(mutex_);
  const auto known = by_axes_.find(axes);
  if (known != by_axes_.end()) return known->second;
  TESSERA_ASSIGN_OR_RETURN(const Groups groups, mesh_.GroupsAlong(axes));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<topology::Rank> members,
                           groups.MembersWith(mesh_rank()));
  TESSERA_ASSIGN_OR_RETURN(const std::string name,
                           topology::GroupName(mesh_, axes, mesh_rank()));
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, GroupOf(members, name));
  by_axes_.emplace(axes, group);
  return group;
}

}  // namespace tessera::collectives
