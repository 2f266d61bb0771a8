// TensorGroup: the ranks that share the layers of a model, and their
// collectives on activations.
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

// An asynchronous operation on the tensors of a queue; with one rank it is
// already complete. The tensors that it reads and writes must not change until
// Wait has returned.
class Pending {
 public:
  Pending() = default;
  // `queue` must outlive this object.
  Pending(collectives::Work work, Queue& queue)
      : work_(std::move(work)), queue_(&queue) {}

  // Orders later work of the queue after the operation. The host waits only for
  // an operation of the host.
  absl::Status Wait(SourcePlace place = SourcePlace::current()) {
    return work_ ? queue_->Wait(work_->event(), place) : absl::OkStatus();
  }

 private:
  std::optional<collectives::Work> work_;
  Queue* queue_ = nullptr;
};

// InvalidArgument, with the name, if x does not have `tokens` rows.
absl::Status CheckTokenRows(std::string_view name, const ConstTensorView& x,
                            int64_t tokens);

// InvalidArgument, with the name, if `numbers` does not have one number of
// `dtype` per token.
absl::Status CheckTokenNumbers(std::string_view name,
                               const ConstTensorView& numbers, DType dtype,
                               int64_t tokens);

// Other work of a rank while an operation of a group is in flight.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  // Must return the same on every rank of the group.
  virtual bool has_work() const = 0;
  // Returns when the caller should continue. The work may call collectives and
  // the layers of the group with other activations, which overwrites working
  // memory.
  virtual void Work() = 0;
};

// Example:
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
// accepts. Calls are collectives on the queue of the ops: they start after the
// work that the queue has, and later work of the queue starts after them (for
// the Start functions, later work after Pending::Wait). Errors are the
// communicator's, or InvalidArgument if a shape does not match the partition.
class TensorGroup {
 public:
  // Neither argument is owned. Without a communicator the group has one rank.
  explicit TensorGroup(Ops& ops,
                       collectives::Communicator* communicator = nullptr)
      : ops_(ops),
        communicator_(communicator),
        memory_(ops.queue().device().memory()),
        working_(std::make_shared<WorkingMemory>()) {}

  // `place` is the source location of the next operation, for errors of the
  // device.
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

  // A copy of the group whose layers have weights without memory, which the
  // owner binds. Allocating whole weights and gradients for every layer at the
  // start may need more memory than training.
  TensorGroup WithoutWeightMemory() const {
    TensorGroup group = *this;
    group.has_weight_memory_ = false;
    return group;
  }
  bool has_weight_memory() const { return has_weight_memory_; }

  // A copy of the group whose layers allocate weights and working memory from
  // `memory`, which must not be null. The default is the memory of the ops'
  // device.
  TensorGroup WithMemory(std::shared_ptr<MemoryResource> memory) const {
    TensorGroup group = *this;
    group.memory_ = std::move(memory);
    group.working_ = std::make_shared<WorkingMemory>();
    return group;
  }
  const std::shared_ptr<MemoryResource>& memory() const { return memory_; }

  // A copy of the group whose layers call `meanwhile`, which must outlive them,
  // between the start of an operation and its end, if they support it.
  TensorGroup WithMeanwhile(Meanwhile* meanwhile) const {
    TensorGroup group = *this;
    group.meanwhile_ = meanwhile;
    return group;
  }
  Meanwhile* meanwhile() const { return meanwhile_; }

  // A copy of the group whose layers use sequence parallelism, or do not.
  TensorGroup WithSequenceParallel(bool sequence_parallel = true) const {
    TensorGroup group = *this;
    group.sequence_parallel_ = sequence_parallel;
    return group;
  }
  bool sequence_parallel() const { return sequence_parallel_; }

  // A copy of the group whose linear layers gather tokens and send sums in
  // `chunks` chunks, each overlapped with the product of another; 0 and 1: no
  // overlap. A chunk should have at least some hundred tokens.
  TensorGroup WithOverlapChunks(int64_t chunks) const {
    TensorGroup group = *this;
    group.overlap_chunks_ = chunks;
    return group;
  }
  int64_t overlap_chunks() const { return overlap_chunks_; }

  // The range of `tokens` whose activations this rank has between layers: its
  // part under sequence parallelism, otherwise all.
  IndexRange TokensBetweenLayers(const Partition& tokens) const {
    return sequence_parallel_ ? tokens.RangeOf(rank())
                              : IndexRange{0, tokens.size()};
  }

  // The working memory of an operation, which all layers that pass this name
  // share: layers compute one after the other, so a model needs it only once.
  // Another layer may overwrite its elements.
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

  // The same for any number of rows per rank. The caller must check the shapes.
  // A copy if there is one rank.
  absl::StatusOr<Pending> StartGatherRows(std::span<const int64_t> rows,
                                          ConstTensorView mine,
                                          TensorView all) const;
  absl::StatusOr<Pending> StartScatterRowSums(std::span<const int64_t> rows,
                                              ConstTensorView all,
                                              TensorView mine) const;

  // InvalidArgument if `tokens` is not a partition over the group's ranks, or
  // if `mine` and `all` are not contiguous tensors of this rank's tokens and of
  // all tokens.
  absl::Status CheckTokens(const Partition& tokens, ConstTensorView mine,
                           ConstTensorView all) const;

 private:
  using WorkingMemory = std::map<std::string, ReusableTensor>;

  Ops& ops_;
  collectives::Communicator* communicator_;
  Meanwhile* meanwhile_ = nullptr;
  bool has_weight_memory_ = true;
  bool sequence_parallel_ = false;
  int64_t overlap_chunks_ = 0;
  std::shared_ptr<MemoryResource> memory_;
  std::shared_ptr<WorkingMemory> working_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_TENSOR_GROUP_H_
