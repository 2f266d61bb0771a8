// TensorGroup: the ranks that share the layers of a model, and their
// collectives on activations.
//
//   TensorGroup group(ops, communicator.get());     // or (ops) for one rank
//   TESSERA_RETURN_IF_ERROR(group.SumOver(partial_outputs));
//
// Under sequence parallelism (Korthikanti et al., arXiv 2205.05198, section
// 4.2.2) each rank has the activations of only some tokens between the sharded
// layers: GatherTokens precedes these layers, and ScatterSums follows them,
// instead of SumOver. Together both move as many bytes as SumOver.
//
// Tensors are [tokens, ...], contiguous, in memory that the communicator
// accepts. Calls are collectives on the queue of the ops: they begin after the
// work that it has, and its later work begins after them (after Pending::Wait
// where a call starts them). Errors are the communicator's, or InvalidArgument
// if a shape does not match the partition.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_TENSOR_GROUP_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_TENSOR_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// An asynchronous operation on the tensors of a queue; with one rank there is
// nothing to wait for. The tensors it reads and writes must stay as they are
// until Wait has returned.
class Pending {
 public:
  Pending() = default;
  // `queue` outlives it.
  Pending(collectives::Work work, Queue& queue)
      : work_(std::move(work)), queue_(&queue) {}

  // Later work of the queue begins after the operation. The host waits only
  // for an operation of the host.
  absl::Status Wait(SourcePlace place = SourcePlace::current()) {
    return work_ ? queue_->Wait(work_->event(), place) : absl::OkStatus();
  }

 private:
  std::optional<collectives::Work> work_;
  Queue* queue_ = nullptr;
};

// InvalidArgument, with the name, if x has not `tokens` rows.
absl::Status CheckTokenRows(std::string_view name, const ConstTensorView& x,
                            int64_t tokens);

// What a rank may do while an operation of a group is under way.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  // The same on every rank of the group.
  virtual bool has_work() const = 0;
  // Returns when the caller is to go on. The work may call collectives, and the
  // layers of the group for other activations: working memory is lost.
  virtual void Work() = 0;
};

class TensorGroup {
 public:
  // Neither is owned. Without a communicator, one rank.
  explicit TensorGroup(Ops& ops,
                       collectives::Communicator* communicator = nullptr)
      : ops_(ops),
        communicator_(communicator),
        memory_(ops.queue().device().memory()),
        working_(std::make_shared<WorkingMemory>()) {}

  // `place` is that of the next operation, for errors of the device.
  Ops& ops(SourcePlace place = SourcePlace::current()) const {
    ops_.SetPlace(place);
    return ops_;
  }
  Queue& queue() const { return ops_.queue(); }
  collectives::Communicator* communicator() const { return communicator_; }
  int64_t size() const {
    return communicator_ == nullptr ? 1 : communicator_->size();
  }
  int64_t rank() const {
    return communicator_ == nullptr ? 0 : communicator_->rank().value();
  }

  // Layers created with this group have weights without memory, which the owner
  // binds: allocating whole weights and gradients for every layer at the start
  // may need more memory than training.
  TensorGroup WithoutWeightMemory() const {
    TensorGroup group = *this;
    group.has_weight_memory_ = false;
    return group;
  }
  bool has_weight_memory() const { return has_weight_memory_; }

  // Layers that are made with this one have their weights and working memory
  // from `memory`, which is not null; without this, from that of the ops'
  // device.
  TensorGroup WithMemory(std::shared_ptr<MemoryResource> memory) const {
    TensorGroup group = *this;
    group.memory_ = std::move(memory);
    group.working_ = std::make_shared<WorkingMemory>();
    return group;
  }
  const std::shared_ptr<MemoryResource>& memory() const { return memory_; }

  // Layers that can give up the host between the begin of an operation of this
  // group and its end do so for `meanwhile`, which outlives them.
  TensorGroup WithMeanwhile(Meanwhile* meanwhile) const {
    TensorGroup group = *this;
    group.meanwhile_ = meanwhile;
    return group;
  }
  Meanwhile* meanwhile() const { return meanwhile_; }

  // Working memory of an operation, the same for all layers that ask for this
  // name: layers compute one after the other, and a model of many layers needs
  // it once. Elements are lost when another layer uses it.
  ReusableTensor Working(const std::string& name) const {
    return working_->try_emplace(name, memory_, queue()).first->second;
  }

  // x = the sum of all ranks' x.
  absl::Status SumOver(TensorView x) const;
  absl::StatusOr<Pending> StartSumOver(TensorView x) const;

  // all = the ranks' tokens, concatenated; `mine` are those of
  // tokens.RangeOf(rank()).
  absl::Status GatherTokens(const Partition& tokens, ConstTensorView mine,
                            TensorView all) const;
  absl::StatusOr<Pending> StartGatherTokens(const Partition& tokens,
                                            ConstTensorView mine,
                                            TensorView all) const;

  // mine = this rank's tokens of the sum of all ranks' `all`.
  absl::Status ScatterSums(const Partition& tokens, ConstTensorView all,
                           TensorView mine) const;
  absl::StatusOr<Pending> StartScatterSums(const Partition& tokens,
                                           ConstTensorView all,
                                           TensorView mine) const;

  // The same of any numbers of rows, one for each rank: shapes are the caller's
  // to check. With one rank a copy.
  absl::StatusOr<Pending> StartGatherRows(std::span<const int64_t> rows,
                                          ConstTensorView mine,
                                          TensorView all) const;
  absl::StatusOr<Pending> StartScatterRowSums(std::span<const int64_t> rows,
                                              ConstTensorView all,
                                              TensorView mine) const;

  // InvalidArgument if `tokens` are not parted among the group's ranks, or the
  // two are not contiguous tensors of this rank's tokens, and of all.
  absl::Status CheckTokens(const Partition& tokens, ConstTensorView mine,
                           ConstTensorView all) const;

 private:
  using WorkingMemory = std::map<std::string, ReusableTensor>;

  Ops& ops_;
  collectives::Communicator* communicator_;
  Meanwhile* meanwhile_ = nullptr;
  bool has_weight_memory_ = true;
  std::shared_ptr<MemoryResource> memory_;
  std::shared_ptr<WorkingMemory> working_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_TENSOR_GROUP_H_
