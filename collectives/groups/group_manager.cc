#include "collectives/groups/group_manager.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "topology/mesh.h"

namespace tessera::collectives {

using topology::Boundary;
using topology::Groups;
using topology::Mesh;

absl::StatusOr<std::unique_ptr<GroupManager>> GroupManager::Create(
    Communicator& world, Mesh mesh, GroupOptions options) {
  if (mesh.world_size() != world.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the mesh has ", mesh.world_size(), " ranks, communicator ",
        world.name(), " has ", world.size(), "; they must be the same"));
  }
  std::unique_ptr<GroupManager> manager(
      new GroupManager(world, std::move(mesh), std::move(options)));
  TESSERA_RETURN_IF_ERROR(manager->FindStages());
  for (size_t i = 0; i < manager->mesh_.division_count(); ++i) {
    for (const topology::Axis& axis : manager->mesh_.division(i)) {
      TESSERA_RETURN_IF_ERROR(manager->Group(axis.name).status());
    }
  }
  return manager;
}

absl::Status GroupManager::FindStages() {
  const std::string& axis = options_.pipeline_axis;
  if (!mesh_.SizeOf(axis).ok()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const topology::AxisSize size, mesh_.SizeOf(axis));
  stages_ = size.value();
  TESSERA_ASSIGN_OR_RETURN(stage_, mesh_.CoordinateOf(mesh_rank(), axis));
  return absl::OkStatus();
}

// The group of these mesh ranks. Requires mutex_.
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

absl::StatusOr<Communicator*> GroupManager::GroupNamed(std::string_view name) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<topology::Rank> members,
                           topology::FindGroup(mesh_, name));
  if (std::find(members.begin(), members.end(), mesh_rank()) == members.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", mesh_rank().value(), " is not in group ", name));
  }
  const std::lock_guard lock(mutex_);
  return GroupOf(members, std::string(name));
}

absl::StatusOr<Communicator*> GroupManager::EndsGroup(std::string_view axis) {
  TESSERA_ASSIGN_OR_RETURN(const Groups groups, mesh_.GroupsAlong(axis));
  TESSERA_ASSIGN_OR_RETURN(const topology::Rank head, groups.Head(mesh_rank()));
  TESSERA_ASSIGN_OR_RETURN(const topology::Rank tail, groups.Tail(mesh_rank()));
  if (head == tail || (mesh_rank() != head && mesh_rank() != tail)) {
    return nullptr;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string name,
                           topology::GroupName(mesh_, axis, mesh_rank()));
  const std::lock_guard lock(mutex_);
  return GroupOf(std::vector<topology::Rank>{head, tail},
                 absl::StrCat(name, "_ends"));
}

absl::Status GroupManager::AllReduce(std::string_view axes, Buffer buffer,
                                     Reduction reduction,
                                     const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, Group(axes));
  return group->AllReduce(buffer, reduction, call);
}

absl::Status GroupManager::AllGather(std::string_view axes, ConstBuffer input,
                                     Buffer output, const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, Group(axes));
  return group->AllGather(input, output, call);
}

absl::Status GroupManager::ReduceScatter(std::string_view axes,
                                         ConstBuffer input, Buffer output,
                                         Reduction reduction,
                                         const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, Group(axes));
  return group->ReduceScatter(input, output, reduction, call);
}

absl::StatusOr<Communicator*> GroupManager::pipeline() {
  if (stages_ == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the mesh has one pipeline stage (axis \"", options_.pipeline_axis,
        "\"): there is no other stage to send to or receive from"));
  }
  return Group(options_.pipeline_axis);
}

absl::StatusOr<Rank> GroupManager::StageAt(int64_t steps,
                                           Boundary boundary) const {
  const int64_t wanted = stage_ + steps % stages_;
  if (boundary == Boundary::kCyclic) {
    return Rank((wanted + stages_) % stages_);
  }
  if (stage_ + steps >= 0 && stage_ + steps < stages_) {
    return Rank(stage_ + steps);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", mesh_rank().value(), " is stage ", stage_, " of ",
                   stages_, ": there is no stage ", stage_ + steps,
                   "; Boundary::kCyclic goes around"));
}

absl::Status GroupManager::SendToNextStage(ConstBuffer input, Boundary boundary,
                                           const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank next, StageAt(+1, boundary));
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, pipeline());
  return group->Send(input, next, call);
}

absl::Status GroupManager::SendToPrevStage(ConstBuffer input, Boundary boundary,
                                           const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank previous, StageAt(-1, boundary));
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, pipeline());
  return group->Send(input, previous, call);
}

absl::Status GroupManager::ReceiveFromNextStage(Buffer output,
                                                Boundary boundary,
                                                const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank next, StageAt(+1, boundary));
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, pipeline());
  return group->Receive(output, next, call);
}

absl::Status GroupManager::ReceiveFromPrevStage(Buffer output,
                                                Boundary boundary,
                                                const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank previous, StageAt(-1, boundary));
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, pipeline());
  return group->Receive(output, previous, call);
}

}  // namespace tessera::collectives
