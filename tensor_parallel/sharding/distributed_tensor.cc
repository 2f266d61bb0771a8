#include "tensor_parallel/sharding/distributed_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "collectives/communicator.h"
#include "collectives/operation/operation.h"
#include "topology/axis.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::GroupManager;
using collectives::Operation;
using collectives::Reduction;

template <typename Byte>
std::span<Byte> BytesOf(const BasicTensorView<Byte>& view) {
  return {view.data(), static_cast<size_t>(view.size_in_bytes())};
}

// Copies views of equal shapes, row by row unless both are contiguous. An
// immediate queue copies any strides at once.
absl::Status CopyOn(Queue& queue, const ConstTensorView& source,
                    const TensorView& target) {
  if (source.element_count() == 0) return absl::OkStatus();
  if (source.IsContiguous() && target.IsContiguous()) {
    return queue.Copy(BytesOf(source), BytesOf(target));
  }
  if (queue.is_immediate()) {
    return queue.Launch(
        {.name = "copy of a shard",
         .accesses = {ReadsFrom(source), WritesTo(target)},
         .run = [&](const DeviceAddresses& at) -> absl::StatusOr<Event> {
           TESSERA_RETURN_IF_ERROR(Copy(at(source), at(target)));
           return Event();
         }});
  }
  for (int64_t i = 0; i < source.shape()[0]; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from, source.Select(0, i));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to, target.Select(0, i));
    TESSERA_RETURN_IF_ERROR(CopyOn(queue, from, to));
  }
  return absl::OkStatus();
}

// The part of `view`, which has the elements of `box`.
template <typename View>
absl::StatusOr<View> PartOf(View view, const Box& box, const Box& part) {
  for (size_t dim = 0; dim < box.ranges.size(); ++dim) {
    TESSERA_ASSIGN_OR_RETURN(
        view, view.Narrow(static_cast<int>(dim),
                          part.ranges[dim].begin - box.ranges[dim].begin,
                          part.ranges[dim].size()));
  }
  return view;
}

// Copies the elements that two boxes of a tensor share.
absl::Status CopyShared(Queue& queue, const Box& from,
                        const ConstTensorView& source, const Box& to,
                        const TensorView& target) {
  const Box shared = Intersection(from, to);
  if (shared.element_count() == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView read,
                           PartOf(source, from, shared));
  TESSERA_ASSIGN_OR_RETURN(const TensorView written,
                           PartOf(target, to, shared));
  return CopyOn(queue, read, written);
}

// True if the rank has the addend with the elements, and others have zeros.
bool IsFirstAlong(const ShardedLayout& layout, topology::Rank rank) {
  const auto& placements = layout.placements();
  return std::all_of(
      placements.begin(), placements.end(), [&](const Placement& placement) {
        return !placement.is_partial() ||
               *layout.mesh().CoordinateOf(rank, placement.axis) == 0;
      });
}

// The blocks of a message, one after the other: in the memory of the tensor,
// which has the elements of `box`, if they already are in this order there,
// otherwise in a packed copy.
class Message {
 public:
  static absl::StatusOr<Message> Create(std::vector<Box> blocks, const Box& box,
                                        const Tensor& tensor) {
    Message message(std::move(blocks));
    if (message.LiesIn(box)) return message;
    int64_t count = 0;
    for (const int64_t block : message.counts_) count += block;
    TESSERA_ASSIGN_OR_RETURN(
        message.packed_,
        Tensor::Create(tensor.dtype(), {{count}}, tensor.buffer().resource()));
    return message;
  }

  const std::vector<int64_t>& counts() const { return counts_; }

  // Packs the elements of `view`, and returns the message.
  absl::StatusOr<collectives::ConstBuffer> Pack(Queue& queue, const Box& box,
                                                const ConstTensorView& view) {
    if (packed_) {
      for (size_t i = 0; i < blocks_.size(); ++i) {
        TESSERA_ASSIGN_OR_RETURN(const TensorView block, Block(i));
        TESSERA_RETURN_IF_ERROR(
            CopyShared(queue, box, view, blocks_[i], block));
      }
    }
    const ConstTensorView all = packed_ ? packed_->view() : view;
    return collectives::ConstBuffer(all.data(), all.element_count(),
                                    all.dtype());
  }

  // The memory to receive the message in, before Unpack moves it to `view`.
  collectives::Buffer Target(const TensorView& view) {
    const TensorView all = packed_ ? packed_->view() : view;
    return {all.data(), all.element_count(), all.dtype()};
  }
  absl::Status Unpack(Queue& queue, const Box& box, const TensorView& view) {
    for (size_t i = 0; packed_ && i < blocks_.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView block, Block(i));
      TESSERA_RETURN_IF_ERROR(CopyShared(queue, blocks_[i], block, box, view));
    }
    return absl::OkStatus();
  }

 private:
  explicit Message(std::vector<Box> blocks) : blocks_(std::move(blocks)) {
    for (const Box& block : blocks_) counts_.push_back(block.element_count());
  }

  bool LiesIn(const Box& box) const {
    int64_t next = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (counts_[i] == 0) continue;
      if (!IsContiguousIn(box, blocks_[i]) ||
          OffsetIn(box, blocks_[i]) != next) {
        return false;
      }
      next += counts_[i];
    }
    return next == box.element_count();
  }

  absl::StatusOr<TensorView> Block(size_t i) {
    int64_t first = 0;
    for (size_t before = 0; before < i; ++before) first += counts_[before];
    TESSERA_ASSIGN_OR_RETURN(const TensorView flat,
                             packed_->view().Narrow(0, first, counts_[i]));
    return flat.Reshape(blocks_[i].shape());
  }

  std::vector<Box> blocks_;
  std::vector<int64_t> counts_ = {};
  std::optional<Tensor> packed_ = {};
};

// Executes the steps of a plan. Owns what enqueued work uses, so it must live
// until the work is done.
class Mover {
 public:
  Mover(GroupManager& groups, Queue& queue) : groups_(groups), queue_(queue) {}

  // The result belongs to this object.
  absl::StatusOr<DistributedTensor*> Run(const DistributedTensor& tensor,
                                         const RedistributionStep& step) {
    TESSERA_ASSIGN_OR_RETURN(
        DistributedTensor created,
        DistributedTensor::Create(step.to, tensor.rank(), tensor.dtype(),
                                  tensor.local().buffer().resource()));
    DistributedTensor& result = *results_.emplace_back(
        std::make_unique<DistributedTensor>(std::move(created)));
    const absl::Status status =
        step.kind == StepKind::kSlice ? CopyTo(tensor, result)
        : step.kind == StepKind::kPad ? Pad(tensor, step, result)
                                      : Communicate(tensor, step, result);
    TESSERA_RETURN_IF_ERROR(status, Annotate(_, step.ToString()));
    return &result;
  }

 private:
  absl::Status CopyTo(const DistributedTensor& tensor,
                      DistributedTensor& result) {
    return CopyShared(queue_, tensor.box(), tensor.local().view(), result.box(),
                      result.local().view());
  }

  // A shard keeps its elements and has zeros for the others; of ranks with the
  // same elements the first one keeps them.
  absl::Status Pad(const DistributedTensor& tensor,
                   const RedistributionStep& step, DistributedTensor& result) {
    TESSERA_RETURN_IF_ERROR(
        queue_.Fill(std::byte{0}, BytesOf(result.local().view())));
    const std::vector<std::string> used = step.from.axes();
    const bool was_sharded =
        std::find(used.begin(), used.end(), step.axes[0]) != used.end();
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t coordinate,
        step.from.mesh().CoordinateOf(tensor.rank(), step.axes[0]));
    return was_sharded || coordinate == 0 ? CopyTo(tensor, result)
                                          : absl::OkStatus();
  }

  absl::Status Communicate(const DistributedTensor& tensor,
                           const RedistributionStep& step,
                           DistributedTensor& result) {
    TESSERA_ASSIGN_OR_RETURN(Communicator* const group,
                             groups_.Group(absl::StrJoin(step.axes, ",")));
    Communicator& communicator =
        IsHostAccessible(tensor.local().kind()) ? group->host() : *group;
    TESSERA_ASSIGN_OR_RETURN(const StepGroup shards,
                             GroupOf(step, tensor.rank()));
    const size_t self = shards.IndexOf(tensor.rank());
    // Blocks of the messages; one if a side is the tensor itself.
    std::vector<Box> out, in;
    for (size_t i = 0; i < shards.members.size(); ++i) {
      out.push_back(shards.BlockOf(self, i));
      in.push_back(shards.BlockOf(i, self));
    }
    const bool reduces_all = step.kind == StepKind::kAllReduce;
    if (reduces_all || step.kind == StepKind::kAllGather) out = {tensor.box()};
    if (reduces_all || step.kind == StepKind::kReduceScatter) {
      in = {result.box()};
    }
    TESSERA_ASSIGN_OR_RETURN(Message* const sent,
                             NewMessage(std::move(out), tensor));
    TESSERA_ASSIGN_OR_RETURN(Message* const received,
                             NewMessage(std::move(in), result));
    TESSERA_ASSIGN_OR_RETURN(
        const collectives::ConstBuffer input,
        sent->Pack(queue_, tensor.box(), tensor.local().view()));
    const TensorView local = result.local().view();
    const collectives::Buffer output = received->Target(local);
    TESSERA_RETURN_IF_ERROR(communicator.RunOn(
        queue_, OperationOf(step.kind, input, *sent, output, *received)));
    return received->Unpack(queue_, result.box(), local);
  }

  static Operation OperationOf(StepKind kind, collectives::ConstBuffer input,
                               const Message& sent, collectives::Buffer output,
                               const Message& received) {
    switch (kind) {
      case StepKind::kAllGather:
        return AllGatherOf(input, output, received.counts());
      case StepKind::kReduceScatter:
        return ReduceScatterOf(input, output, Reduction::Sum(), sent.counts());
      case StepKind::kAllToAll:
        return AllToAllOf(input, output, sent.counts(), received.counts());
      default:
        return AllReduceOf(input, output, Reduction::Sum());
    }
  }

  absl::StatusOr<Message*> NewMessage(std::vector<Box> blocks,
                                      const DistributedTensor& tensor) {
    TESSERA_ASSIGN_OR_RETURN(
        Message message,
        Message::Create(std::move(blocks), tensor.box(), tensor.local()));
    return messages_.emplace_back(std::make_unique<Message>(std::move(message)))
        .get();
  }

  GroupManager& groups_;
  Queue& queue_;
  std::vector<std::unique_ptr<Message>> messages_;
  std::vector<std::unique_ptr<DistributedTensor>> results_;
};

absl::Status CheckUse(GroupManager& groups, const DistributedTensor& tensor,
                      const RedistributionPlan& plan) {
  if (!(plan.from == tensor.layout()) || plan.dtype != tensor.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan is for ", DTypeName(plan.dtype), " ", plan.from.ToString(),
        ", the tensor is ", tensor.ToString(), "; plan for this tensor"));
  }
  if (groups.mesh_rank() != tensor.rank() ||
      !tensor.layout().IsOn(groups.mesh())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor belongs to rank ", tensor.rank().value(), " of mesh ",
        topology::FormatAxes(tensor.layout().mesh().axes()),
        ", the group manager to rank ", groups.mesh_rank().value(), " of ",
        topology::FormatAxes(groups.mesh().axes()),
        "; give those of one mesh and rank"));
  }
  if (!IsHostAccessible(tensor.local().kind()) &&
      &groups.world().host() == &groups.world()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor is in device memory, communicator ", groups.world().name(),
        " of the group manager runs on engine ", groups.world().engine_name(),
        " in host memory; give a group manager whose world is on the device"));
  }
  return absl::OkStatus();
}

absl::Status CheckDim(const DistributedTensor& tensor, int dim) {
  const auto dims = static_cast<int>(tensor.shape().size());
  if (0 <= dim && dim < dims) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("dimension ", dim, " of ", tensor.ToString(),
                   "; give one from 0 to ", dims - 1));
}

// Removes the placements that `is_removed` selects.
template <typename Predicate>
Placements Without(const DistributedTensor& tensor, Predicate is_removed) {
  Placements placements = tensor.layout().placements();
  std::erase_if(placements, is_removed);
  return placements;
}

}  // namespace

absl::StatusOr<DistributedTensor> DistributedTensor::Create(
    const ShardedLayout& layout, topology::Rank rank, DType dtype,
    std::shared_ptr<MemoryResource> memory) {
  TESSERA_RETURN_IF_ERROR(layout.mesh().CoordinatesOf(rank).status());
  TESSERA_ASSIGN_OR_RETURN(
      Tensor local,
      Tensor::Create(dtype, layout.BoxOf(rank).shape(), std::move(memory)));
  return DistributedTensor(layout, rank, std::move(local));
}

absl::StatusOr<DistributedTensor> DistributedTensor::FromLocal(
    const ShardedLayout& layout, topology::Rank rank, Tensor local) {
  TESSERA_RETURN_IF_ERROR(layout.mesh().CoordinatesOf(rank).status());
  const Box box = layout.BoxOf(rank);
  if (local.shape() != box.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shard of shape ", DimsToString(local.shape()), " of ",
                     layout.ToString(), "; rank ", rank.value(), " holds ",
                     box.ToString(), ", give ", DimsToString(box.shape())));
  }
  return DistributedTensor(layout, rank, std::move(local));
}

absl::StatusOr<DistributedTensor> DistributedTensor::FromWhole(
    const ShardedLayout& layout, topology::Rank rank, ConstTensorView whole,
    Queue& queue) {
  if (whole.shape() != layout.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a whole tensor of shape ", DimsToString(whole.shape()), " for ",
        layout.ToString(), "; give ", DimsToString(layout.shape())));
  }
  TESSERA_ASSIGN_OR_RETURN(
      DistributedTensor tensor,
      Create(layout, rank, whole.dtype(), queue.device().memory()));
  const TensorView local = tensor.local_.view();
  absl::Status status = IsFirstAlong(layout, rank)
                            ? CopyShared(queue, WholeBox(layout.shape()), whole,
                                         tensor.box_, local)
                            : queue.Fill(std::byte{0}, BytesOf(local));
  status.Update(queue.Synchronize());
  TESSERA_RETURN_IF_ERROR(status);
  return tensor;
}

std::string DistributedTensor::ToString() const {
  return absl::StrCat(DTypeName(dtype()), " ", layout_.ToString(), "; rank ",
                      rank_.value(), " holds ", box_.ToString());
}

absl::StatusOr<DistributedTensor> Redistribute(GroupManager& groups,
                                               Queue& queue,
                                               const DistributedTensor& tensor,
                                               Placements to,
                                               const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const ShardedLayout target,
                           tensor.layout().With(std::move(to)));
  TESSERA_ASSIGN_OR_RETURN(
      const RedistributionPlan plan,
      PlanRedistribution(tensor.layout(), target, tensor.dtype(), options));
  return Redistribute(groups, queue, tensor, plan);
}

absl::StatusOr<DistributedTensor> Redistribute(GroupManager& groups,
                                               Queue& queue,
                                               const DistributedTensor& tensor,
                                               const RedistributionPlan& plan) {
  TESSERA_RETURN_IF_ERROR(CheckUse(groups, tensor, plan));
  Mover mover(groups, queue);
  const auto run = [&]() -> absl::StatusOr<DistributedTensor*> {
    if (plan.steps.empty()) {
      return mover.Run(tensor, {StepKind::kSlice, {}, plan.from, plan.to});
    }
    DistributedTensor* result = nullptr;
    for (const RedistributionStep& step : plan.steps) {
      TESSERA_ASSIGN_OR_RETURN(
          result, mover.Run(result == nullptr ? tensor : *result, step));
    }
    return result;
  };
  absl::StatusOr<DistributedTensor*> result = run();
  // The queue uses the mover's memory until then.
  const absl::Status done = queue.Synchronize();
  TESSERA_RETURN_IF_ERROR(result.status());
  TESSERA_RETURN_IF_ERROR(done);
  return std::move(**result);
}

absl::StatusOr<DistributedTensor> Gather(GroupManager& groups, Queue& queue,
                                         const DistributedTensor& tensor,
                                         int dim) {
  TESSERA_RETURN_IF_ERROR(CheckDim(tensor, dim));
  return Redistribute(groups, queue, tensor,
                      Without(tensor, [&](const Placement& placement) {
                        return placement.dim == dim;
                      }));
}

absl::StatusOr<DistributedTensor> Scatter(GroupManager& groups, Queue& queue,
                                          const DistributedTensor& tensor,
                                          std::string_view axis, int dim,
                                          PartitionRule rule) {
  TESSERA_RETURN_IF_ERROR(CheckDim(tensor, dim));
  Placements placements = Without(tensor, [&](const Placement& placement) {
    return placement.axis == axis;
  });
  placements.push_back({std::string(axis), dim, std::move(rule)});
  return Redistribute(groups, queue, tensor, std::move(placements));
}

absl::StatusOr<DistributedTensor> Reduce(GroupManager& groups, Queue& queue,
                                         const DistributedTensor& tensor) {
  return Redistribute(groups, queue, tensor,
                      Without(tensor, [](const Placement& placement) {
                        return placement.is_partial();
                      }));
}

}  // namespace tessera::tensor_parallel
