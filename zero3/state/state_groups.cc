#include "zero3/state/state_groups.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

using collectives::Communicator;

// The subgroup of `size` ranks from `first` on.
absl::StatusOr<std::unique_ptr<Communicator>> Part(Communicator& group,
                                                   int64_t first, int64_t size,
                                                   std::string_view name) {
  std::vector<topology::Rank> members;
  for (int64_t r = 0; r < size; ++r) members.emplace_back(first + r);
  return group.Subgroup(members, absl::StrCat(group.name(), "/", name));
}

absl::StatusOr<std::unique_ptr<Communicator>> Copy(Communicator& group,
                                                   std::string_view name) {
  return Part(group, 0, group.size(), name);
}

}  // namespace

absl::StatusOr<StateGroups> StateGroups::Create(
    const ShardedStateGroups& groups, int64_t hpz_partition_size) {
  Communicator& shard = *groups.shard;
  StateGroups own;
  TESSERA_ASSIGN_OR_RETURN(own.gather, Copy(shard, "gather"));
  if (hpz_partition_size > 0) {
    if (shard.size() % hpz_partition_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "hpz_partition_size is ", hpz_partition_size, "; it must divide the ",
          shard.size(), " ranks of the shard group"));
    }
    const int64_t before = shard.rank().value() % hpz_partition_size;
    TESSERA_ASSIGN_OR_RETURN(own.secondary,
                             Part(shard, shard.rank().value() - before,
                                  hpz_partition_size, "secondary"));
  }
  TESSERA_ASSIGN_OR_RETURN(own.reduce, Copy(shard, "reduce"));
  TESSERA_ASSIGN_OR_RETURN(own.agree, Copy(shard.host(), "agree"));
  if (groups.replicas != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(own.replicas, Copy(*groups.replicas, "reduce"));
  }
  if (groups.model != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(own.model, Copy(groups.model->host(), "norm"));
  }
  return own;
}

void StateGroups::Abort(std::string_view reason) {
  for (Communicator* const group : {gather.get(), secondary.get(), reduce.get(),
                                    agree.get(), replicas.get(), model.get()}) {
    if (group != nullptr) group->Abort(reason);
  }
}

}  // namespace tessera::zero3
