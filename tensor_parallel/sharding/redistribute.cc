#include "tensor_parallel/sharding/redistribute.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "tensor_parallel/sharding/distributed_tensor.h"

namespace tessera::tensor_parallel {

namespace {

using collectives::Communicator;
using collectives::GroupManager;
using collectives::Reduction;

// Blocks of a collective's message, one for each member: parts of a shard.
struct Message {
  std::vector<Shard> blocks = {};
  std::vector<int64_t> counts = {};

  int64_t count() const {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
};

Message MessageOf(std::vector<Shard> blocks) {
  Message message = {.blocks = std::move(blocks)};
  for (const Shard& block : message.blocks) {
    message.counts.push_back(block.element_count());
  }
  return message;
}

Message SharedWith(std::span<const Shard> shards, const Shard& mine) {
  std::vector<Shard> blocks;
  for (const Shard& shard : shards) blocks.push_back(Intersection(shard, mine));
  return MessageOf(std::move(blocks));
}

// Returns true if the blocks, one after the other, are the elements of `shard`
// in memory order: then the message needs no buffer.
bool LiesIn(const Message& message, const Shard& shard) {
  int64_t start = 0;
  for (size_t i = 0; i < message.blocks.size(); ++i) {
    if (message.counts[i] == 0) continue;
    if (OffsetIn(shard, message.blocks[i]) != start) return false;
    start += message.counts[i];
  }
  return start == shard.element_count();
}

// Block `i` of a packed message.
absl::StatusOr<TensorView> BlockView(const Message& message, size_t i,
                                     const TensorView& packed) {
  const int64_t size = SizeInBytes(packed.dtype());
  const int64_t start = std::accumulate(
      message.counts.begin(),
      message.counts.begin() + static_cast<std::ptrdiff_t>(i), int64_t{0});
  return TensorView::Create(
      std::span(packed.data() + start * size,
                static_cast<size_t>(message.counts[i] * size)),
      packed.dtype(), message.blocks[i].shape());
}

collectives::Buffer BufferOf(const TensorView& view) {
  return {view.data(), view.element_count(), view.dtype()};
}
collectives::ConstBuffer BufferOf(const ConstTensorView& view) {
  return {view.data(), view.element_count(), view.dtype()};
}

// The data to send: the elements of the shard themselves, or a packed copy.
class Outgoing {
 public:
  static absl::StatusOr<Outgoing> Create(const Message& message,
                                         const Shard& shard,
                                         const ConstTensorView& local) {
    Outgoing out;
    if (LiesIn(message, shard)) {
      out.buffer_ = BufferOf(local);
      return out;
    }
    TESSERA_ASSIGN_OR_RETURN(
        Tensor packed, Tensor::Create(local.dtype(), {{message.count()}}));
    for (size_t i = 0; i < message.blocks.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView block,
                               BlockView(message, i, packed.view()));
      TESSERA_RETURN_IF_ERROR(
          CopyShared(shard, local, message.blocks[i], block));
    }
    out.buffer_ = BufferOf(std::as_const(packed).view());
    out.packed_ = std::move(packed);
    return out;
  }

  collectives::ConstBuffer buffer() const { return buffer_; }

 private:
  std::optional<Tensor> packed_;
  collectives::ConstBuffer buffer_;
};

// The memory to receive into: the result itself, or memory that Unpack copies
// from.
class Incoming {
 public:
  static absl::StatusOr<Incoming> Create(Message message, const Shard& shard,
                                         const TensorView& result) {
    Incoming in(std::move(message), shard, result);
    if (LiesIn(in.message_, shard)) return in;
    TESSERA_ASSIGN_OR_RETURN(
        Tensor packed, Tensor::Create(result.dtype(), {{in.message_.count()}}));
    in.packed_ = std::move(packed);
    return in;
  }

  collectives::Buffer buffer() {
    return BufferOf(packed_.has_value() ? packed_->view() : result_);
  }
  const std::vector<int64_t>& counts() const { return message_.counts; }

  absl::Status Unpack() {
    if (!packed_.has_value()) return absl::OkStatus();
    for (size_t i = 0; i < message_.blocks.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView block,
                               BlockView(message_, i, packed_->view()));
      TESSERA_RETURN_IF_ERROR(
          CopyShared(message_.blocks[i], block, shard_, result_));
    }
    return absl::OkStatus();
  }

 private:
  Incoming(Message message, const Shard& shard, TensorView result)
      : message_(std::move(message)),
        shard_(shard),
        result_(std::move(result)) {}

  Message message_;
  const Shard& shard_;
  TensorView result_;
  std::optional<Tensor> packed_;
};

bool AllEqual(std::span<const int64_t> counts) {
  return std::adjacent_find(counts.begin(), counts.end(),
                            std::not_equal_to<>()) == counts.end();
}

absl::Status RunAllGather(Communicator& communicator, const StepGroup& group,
                          const ConstTensorView& local,
                          const TensorView& result) {
  TESSERA_ASSIGN_OR_RETURN(
      Incoming in,
      Incoming::Create(MessageOf(group.from), group.to[group.self], result));
  TESSERA_RETURN_IF_ERROR(
      AllEqual(in.counts())
          ? communicator.AllGather(BufferOf(local), in.buffer())
          : communicator.AllGatherUneven(BufferOf(local), in.buffer(),
                                         in.counts()));
  return in.Unpack();
}

absl::Status RunReduceScatter(Communicator& communicator,
                              const StepGroup& group,
                              const ConstTensorView& local,
                              const TensorView& result) {
  const Message message = MessageOf(group.to);
  TESSERA_ASSIGN_OR_RETURN(
      const Outgoing out,
      Outgoing::Create(message, group.from[group.self], local));
  if (AllEqual(message.counts)) {
    return communicator.ReduceScatter(out.buffer(), BufferOf(result),
                                      Reduction::Sum());
  }
  return communicator.ReduceScatterUneven(out.buffer(), message.counts,
                                          BufferOf(result), Reduction::Sum());
}

absl::Status RunAllToAll(Communicator& communicator, const StepGroup& group,
                         const ConstTensorView& local,
                         const TensorView& result) {
  const Shard& from = group.from[group.self];
  const Shard& to = group.to[group.self];
  const Message message = SharedWith(group.to, from);
  TESSERA_ASSIGN_OR_RETURN(const Outgoing out,
                           Outgoing::Create(message, from, local));
  TESSERA_ASSIGN_OR_RETURN(
      Incoming in, Incoming::Create(SharedWith(group.from, to), to, result));
  TESSERA_RETURN_IF_ERROR(communicator.AllToAllUneven(
      out.buffer(), message.counts, in.buffer(), in.counts()));
  return in.Unpack();
}

absl::Status RunCollective(GroupManager& groups, const StepGroup& group,
                           const RedistributionStep& step,
                           const ConstTensorView& local,
                           const TensorView& result) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const communicator,
                           groups.Group(absl::StrJoin(step.axes, ",")));
  switch (step.kind) {
    case StepKind::kAllGather:
      return RunAllGather(*communicator, group, local, result);
    case StepKind::kReduceScatter:
      return RunReduceScatter(*communicator, group, local, result);
    case StepKind::kAllToAll:
      return RunAllToAll(*communicator, group, local, result);
    default:
      return communicator->AllReduce(BufferOf(local), BufferOf(result),
                                     Reduction::Sum());
  }
}

// A shard keeps its values and zeros stand for the rest; of ranks that hold the
// same, the first one keeps them.
absl::Status RunZeroPad(const DistributedTensor& tensor,
                        const RedistributionStep& step,
                        DistributedTensor& result) {
  TESSERA_RETURN_IF_ERROR(Fill(result.local().view(), 0.0f));
  const std::vector<std::string> used = step.from.AxesInUse();
  const bool sharded =
      std::find(used.begin(), used.end(), step.axes[0]) != used.end();
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t coordinate,
      tensor.mesh().CoordinateOf(tensor.rank(), step.axes[0]));
  if (!sharded && coordinate != 0) return absl::OkStatus();
  return CopyShared(tensor.shard(), tensor.local().view(), result.shard(),
                    result.local().view());
}

}  // namespace

absl::StatusOr<DistributedTensor> RunStep(GroupManager& groups,
                                          const DistributedTensor& tensor,
                                          const RedistributionStep& step) {
  TESSERA_ASSIGN_OR_RETURN(
      DistributedTensor result,
      DistributedTensor::Create(tensor.mesh(), tensor.rank(), step.to,
                                tensor.dtype(), tensor.shape()));
  if (step.kind == StepKind::kSlice) {
    TESSERA_RETURN_IF_ERROR(CopyShared(tensor.shard(), tensor.local().view(),
                                       result.shard(), result.local().view()));
    return result;
  }
  if (step.kind == StepKind::kZeroPad) {
    TESSERA_RETURN_IF_ERROR(RunZeroPad(tensor, step, result));
    return result;
  }
  TESSERA_ASSIGN_OR_RETURN(
      const StepGroup group,
      GroupOf(tensor.mesh(), tensor.shape(), step, tensor.rank()));
  TESSERA_RETURN_IF_ERROR(RunCollective(
      groups, group, step, tensor.local().view(), result.local().view()));
  return result;
}

using collectives::GroupManager;

absl::StatusOr<DistributedTensor> Redistribute(GroupManager& groups,
                                               const DistributedTensor& tensor,
                                               const ShardSpec& to,
                                               const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      const RedistributionPlan plan,
      PlanRedistribution(groups.mesh(), tensor.shape(), tensor.dtype(),
                         tensor.spec(), to, options));
  return Redistribute(groups, tensor, plan);
}

absl::StatusOr<DistributedTensor> Redistribute(GroupManager& groups,
                                               const DistributedTensor& tensor,
                                               const RedistributionPlan& plan) {
  if (plan.shape != tensor.shape() || plan.dtype != tensor.dtype() ||
      !(plan.from == tensor.spec())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan is for ", DTypeName(plan.dtype), " ",
        DimsToString(plan.shape), " as ", plan.from.ToString(),
        ", the tensor is ", tensor.ToString(), "; plan for this tensor"));
  }
  if (groups.mesh_rank() != tensor.rank() ||
      groups.mesh().world_size() != tensor.mesh().world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor is rank ", tensor.rank().value(), "'s of ",
        tensor.mesh().world_size(), ", the group manager rank ",
        groups.mesh_rank().value(), "'s of ", groups.mesh().world_size(),
        "; both must be of one mesh and rank"));
  }
  const DistributedTensor* current = &tensor;
  absl::StatusOr<DistributedTensor> result = absl::UnknownError("no step");
  for (const RedistributionStep& step : plan.steps) {
    result = RunStep(groups, *current, step);
    if (!result.ok()) return Annotate(result.status(), step.ToString());
    current = &*result;
  }
  // Returns a separate tensor even if the plan is empty.
  return plan.steps.empty()
             ? RunStep(
                   groups, tensor,
                   {.kind = StepKind::kSlice, .from = plan.from, .to = plan.to})
             : std::move(result);
}

absl::StatusOr<DistributedTensor> Gather(GroupManager& groups,
                                         const DistributedTensor& tensor,
                                         int dim) {
  if (dim < 0 || static_cast<size_t>(dim) >= tensor.shape().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather along dimension ", dim, " of ", tensor.ToString(),
                     "; 0 to ", tensor.shape().size(), " less 1 are allowed"));
  }
  ShardSpec to = tensor.spec();
  to.dims[static_cast<size_t>(dim)].axes.clear();
  return Redistribute(groups, tensor, to);
}

absl::StatusOr<Tensor> GatherAll(GroupManager& groups,
                                 const DistributedTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(
      DistributedTensor whole,
      Redistribute(groups, tensor,
                   ShardSpec::Replicated(tensor.shape().size())));
  return std::move(whole.local());
}

}  // namespace tessera::tensor_parallel
