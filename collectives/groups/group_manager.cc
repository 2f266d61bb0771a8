#include "collectives/groups/group_manager.h"

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "topology/mesh.h"

namespace tessera::collectives {

using topology::Groups;
using topology::Mesh;

absl::StatusOr<std::unique_ptr<GroupManager>> GroupManager::Create(
    Communicator& world, Mesh mesh, std::string pipeline_axis) {
  if (mesh.world_size() != world.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the mesh has ", mesh.world_size(), " ranks, communicator ",
        world.name(), " has ", world.size(), "; they must be the same"));
  }
  std::unique_ptr<GroupManager> manager(
      new GroupManager(world, std::move(mesh), std::move(pipeline_axis)));
  TESSERA_RETURN_IF_ERROR(manager->FindStage());
  for (size_t i = 0; i < manager->mesh_.division_count(); ++i) {
    for (const topology::Axis& axis : manager->mesh_.division(i)) {
      TESSERA_RETURN_IF_ERROR(manager->Group(axis.name).status());
    }
  }
  return manager;
}

absl::Status GroupManager::FindStage() {
  const absl::StatusOr<topology::AxisSize> stages =
      mesh_.SizeOf(pipeline_axis_);
  if (!stages.ok()) return absl::OkStatus();
  stages_ = stages->value();
  TESSERA_ASSIGN_OR_RETURN(stage_,
                           mesh_.CoordinateOf(mesh_rank(), pipeline_axis_));
  return absl::OkStatus();
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

absl::StatusOr<Communicator*> GroupManager::GroupNamed(std::string_view name) {
  // An axis may itself be named "my_group", so all positions are tried.
  for (size_t end = name.find("_group"); end != std::string_view::npos;
       end = name.find("_group", end + 1)) {
    const std::string_view axes = name.substr(0, end);
    const absl::StatusOr<std::string> own =
        topology::GroupName(mesh_, axes, mesh_rank());
    if (own.ok() && *own == name) return Group(axes);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", mesh_rank().value(), " has no group ", Quoted(name),
      " in the mesh ", topology::FormatAxes(mesh_.axes()),
      "; the name of its group along some axes is topology::GroupName"));
}

absl::StatusOr<Communicator*> GroupManager::EndsGroup(std::string_view axes) {
  TESSERA_ASSIGN_OR_RETURN(const Groups groups, mesh_.GroupsAlong(axes));
  TESSERA_ASSIGN_OR_RETURN(const topology::Rank head, groups.Head(mesh_rank()));
  TESSERA_ASSIGN_OR_RETURN(const topology::Rank tail, groups.Tail(mesh_rank()));
  if (head == tail || (mesh_rank() != head && mesh_rank() != tail)) {
    return nullptr;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string name,
                           topology::GroupName(mesh_, axes, mesh_rank()));
  const std::lock_guard lock(mutex_);
  return GroupOf(std::vector<topology::Rank>{head, tail}, name + "_ends");
}

absl::Status GroupManager::Run(std::string_view axes,
                               const Operation& operation,
                               const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const group, Group(axes));
  return group->Run(operation, call);
}

// The error of a stage at one end of the pipeline.
absl::Status GroupManager::NoStage(std::string_view direction,
                                   std::string_view end) const {
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no ", direction, " stage: rank ", mesh_rank().value(),
      " is the ", end, " of ", stages_, " stages of axis ", pipeline_axis_,
      " in the mesh ", topology::FormatAxes(mesh_.axes())));
}

absl::StatusOr<Rank> GroupManager::NextStage() const {
  if (IsLastStage()) return NoStage("next", "last");
  return Rank(stage_ + 1);
}

absl::StatusOr<Rank> GroupManager::PreviousStage() const {
  if (IsFirstStage()) return NoStage("previous", "first");
  return Rank(stage_ - 1);
}

absl::Status GroupManager::SendToNextStage(ConstBuffer activations,
                                           int32_t micro_batch,
                                           const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank next, NextStage());
  return Run(pipeline_axis_, SendOf(activations, next, micro_batch), call);
}

absl::Status GroupManager::ReceiveFromPreviousStage(Buffer activations,
                                                    int32_t micro_batch,
                                                    const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank previous, PreviousStage());
  return Run(pipeline_axis_, ReceiveOf(activations, previous, micro_batch),
             call);
}

absl::Status GroupManager::SendToPreviousStage(ConstBuffer gradients,
                                               int32_t micro_batch,
                                               const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank previous, PreviousStage());
  return Run(pipeline_axis_, SendOf(gradients, previous, micro_batch), call);
}

absl::Status GroupManager::ReceiveFromNextStage(Buffer gradients,
                                                int32_t micro_batch,
                                                const CallOptions& call) {
  TESSERA_ASSIGN_OR_RETURN(const Rank next, NextStage());
  return Run(pipeline_axis_, ReceiveOf(gradients, next, micro_batch), call);
}

std::map<std::string, StatisticsTable> GroupManager::Statistics() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, StatisticsTable> statistics;
  for (const auto& [name, group] : groups_) {
    statistics[name] = group->StatisticsWithSubgroups();
  }
  return statistics;
}

}  // namespace tessera::collectives
