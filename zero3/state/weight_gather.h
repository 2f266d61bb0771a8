// The all-gather of sharded parameters: WeightGather gathers one, and
// GatheredParameters all parameters of stage 3 while they are in use.
#ifndef TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_
#define TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "collectives/operation/operation.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// The all-gather of a parameter's shards. `own` is this rank's slot. `whole`
// has layout.GatheredElements(id) elements: the parameter's, then padding.
// `own` may be the rank's slot in `whole`.
collectives::Operation GatherOperation(const StateLayout& layout,
                                       ParameterId id,
                                       std::span<const std::byte> own,
                                       std::span<std::byte> whole);

// The slot of `rank` in the gathered buffer.
std::span<std::byte> SlotIn(const StateLayout& layout, ParameterId id,
                            topology::Rank rank, std::span<std::byte> whole);

struct GatherOptions {
  bool quantized = false;
};

struct GatherGroups {
  collectives::Communicator* shard = nullptr;
  // The ranks that together hold a second copy; null: no second copy.
  collectives::Communicator* secondary = nullptr;
};

// All-gathers one sharded parameter, optionally with int8 messages and a second
// copy within the host.
//
//   WeightGather gather(context, id, {.quantized = true}, groups, pool);
//   // In every step, before each use:
//   TESSERA_RETURN_IF_ERROR(gather.Start(own, whole));
//   Compute();
//   TESSERA_RETURN_IF_ERROR(gather.Finish());
//   // When the values change:
//   gather.Forget();
//
// quantized (qwZ): every rank encodes its slot (int8_blocks.h), and the codes
// are gathered and decoded. A rank decodes its own slot too, so all ranks
// compute with the same bits; the shard itself does not change. Types without
// an int8 form (f64) are gathered without quantisation.
//
// secondary (hpZ): the ranks of a host. After the first gather of a step each
// rank keeps its part of the gathered parameter, and later gathers of the step
// are all-gathers of these parts within that group. They send no bytes across
// hosts, give the same bits as the first gather, and do not read `own`.
//
// Bytes that each rank sends for a parameter of G gathered elements of w bytes,
// on n ranks with h in the secondary group:
//
//   first gather of a step, native      (n-1)/n * G * w
//   first gather of a step, quantized   (n-1)/n * (sum of Int8Bytes(slot))
//   later gathers with a secondary      (h-1)/h * G * w, within the host
//
// ZeRO++, Wang et al., arXiv 2306.10209, sections 4.1 and 4.2.
//
// Start is a collective: all ranks make the same calls in the same order. One
// thread at a time.
class WeightGather {
 public:
  // All arguments must outlive this. Codes are allocated from `pool`; nothing
  // is allocated before Start.
  WeightGather(const StateContext& context, ParameterId id,
               const GatherOptions& options, const GatherGroups& groups,
               BufferPool& pool);

  // Waits for a gather in progress.
  ~WeightGather();
  WeightGather(const WeightGather&) = delete;
  WeightGather& operator=(const WeightGather&) = delete;

  // True if the next Start reads `own`.
  bool NeedsOwn() const { return !has_secondary_; }

  // Starts to fill `whole`, layout.GatheredElements(id) elements, from every
  // rank's slot `own`. Both must stay valid until Finish; `own` may be empty
  // unless NeedsOwn(). The device's queue writes `own` and uses `whole` before
  // `ready`; codes are written by later work of that queue. FailedPrecondition
  // if a gather is in flight; InvalidArgument for wrong sizes;
  // ResourceExhausted if there is no room for the codes.
  absl::Status Start(std::span<const std::byte> own, std::span<std::byte> whole,
                     const QueuePoint& ready = {});
  // Orders later work of the device's queue after the arrival of the values in
  // `whole`. OK if no gather is in flight.
  absl::Status Finish();

  // Frees the second copy, so that the next gather reads shards again. Must not
  // be called between Start and Finish.
  void Forget();

  // Bytes of the second copy and of codes in flight.
  int64_t held_bytes() const;

 private:
  absl::Status StartOn(collectives::Communicator& group,
                       collectives::ConstBuffer own, collectives::Buffer whole,
                       const std::vector<int64_t>& counts,
                       const QueuePoint& ready);
  absl::Status StartNative(std::span<const std::byte> own,
                           const QueuePoint& ready);
  absl::Status StartQuantized(std::span<const std::byte> own);
  absl::Status StartSecondary(const QueuePoint& ready);
  absl::Status Decode();
  absl::Status KeepSecondary();
  std::span<std::byte> SecondaryIn(std::span<std::byte> whole) const;
  absl::Status CheckSizes(std::span<const std::byte> own,
                          std::span<const std::byte> whole) const;

  const StateContext& context_;
  const ModelParameter& parameter_;
  const GatherGroups groups_;
  BufferPool& pool_;
  const bool quantized_;
  std::vector<int64_t> slots_;            // Elements, by rank.
  std::vector<int64_t> secondary_slots_;  // By rank of the secondary group.

  std::optional<collectives::Work> work_;
  std::span<std::byte> whole_;
  AccountedMemory encoded_;
  AccountedMemory secondary_;
  QueuePoint secondary_written_;
  bool has_secondary_ = false;
  bool starts_secondary_ = false;  // The gather in flight is of second copies.
};

// The parameters of stage 3, which are gathered from the shards of all ranks
// while they are in use.
//
//   TESSERA_RETURN_IF_ERROR(gathered->Start(window));      // Asynchronous.
//   ...
//   TESSERA_RETURN_IF_ERROR(gathered->Wait(window));
//   TESSERA_ASSIGN_OR_RETURN(TensorView weight, gathered->Value(id));
//   ...
//   TESSERA_RETURN_IF_ERROR(gathered->Release(window));
//
// A window is a list of parameters that are used together, such as those of a
// layer. Windows may overlap in time and share parameters (a tied embedding): a
// parameter is kept until the last window that contains it is released. All
// ranks must start the same windows in the same order; otherwise they get an
// error (Operation::label). One thread at a time.
class GatheredParameters {
 public:
  // Block shard_of[id] of `shards` is the rank's slot of parameter `id`;
  // parameters with kNoShard are ignored. All arguments must outlive this; no
  // other collectives run on the groups.
  static constexpr size_t kNoShard = ~size_t{0};
  GatheredParameters(const StateContext& context, const GatherOptions& options,
                     const GatherGroups& groups, ShardStore& shards,
                     std::vector<size_t> shard_of);

  // Waits for gathers in progress.
  ~GatheredParameters();

  // Announces a gather, so that shards in tiers are prefetched.
  void Announce(std::span<const ParameterId> window);

  // A collective. Starts to gather the parameters that no other window holds.
  absl::Status Start(std::span<const ParameterId> window);
  // Returns when the window's parameters are whole. Errors name the parameter.
  absl::Status Wait(std::span<const ParameterId> window);
  // FailedPrecondition unless the parameter is whole.
  absl::StatusOr<TensorView> Value(ParameterId id) const;
  // FailedPrecondition, without side effects, unless the window was started.
  absl::Status Release(std::span<const ParameterId> window);

  // Must be called before values change. FailedPrecondition if a window is not
  // released.
  absl::Status EndStep();

  // Bytes of parameters that are gathered or being gathered.
  int64_t live_bytes() const { return live_bytes_; }

 private:
  struct Live {
    int64_t windows = 0;  // Windows that were started and not released.
    AccountedMemory memory;
    std::unique_ptr<WeightGather> gather;  // Created by the first Start.
    bool is_started = false;               // Started and not yet awaited.
    bool has_shard_open = false;
  };

  Live& LiveOf(ParameterId id) {
    return live_[static_cast<size_t>(id.value())];
  }
  size_t ShardOf(ParameterId id) const {
    return shard_of_[static_cast<size_t>(id.value())];
  }
  int64_t BytesOf(ParameterId id) const;
  absl::Status StartOne(ParameterId id);
  absl::Status WaitOne(ParameterId id);
  absl::Status At(ParameterId id, const absl::Status& status) const;

  const StateContext context_;
  const GatherOptions options_;
  const GatherGroups groups_;
  ShardStore& shards_;
  const std::vector<size_t> shard_of_;
  BufferPool pool_;
  std::vector<Live> live_;  // By id.
  int64_t live_bytes_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_
