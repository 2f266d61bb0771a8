// ModelWeights: the parameters of a model, whole or sharded over ranks.
#ifndef TESSERA_ZERO3_STATE_MODEL_WEIGHTS_H_
#define TESSERA_ZERO3_STATE_MODEL_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"
#include "zero3/state/state_groups.h"
#include "zero3/state/state_options.h"
#include "zero3/state/weight_gather.h"

namespace tessera::zero3 {

// True if every rank keeps the parameter whole: below stage 3, if it is small,
// and on a single rank with its shards in memory.
bool IsKeptWhole(const StateLayout& layout, const ShardedStateOptions& options,
                 const ModelParameter& parameter);

// The parameters of a model: gathered before they are used, and published after
// the elements that this rank owns have changed.
//
//   TESSERA_RETURN_IF_ERROR(weights->Start(window));       // Asynchronous.
//   TESSERA_RETURN_IF_ERROR(weights->Wait(window));
//   TESSERA_ASSIGN_OR_RETURN(TensorView weight, weights->Value(id));
//   TESSERA_RETURN_IF_ERROR(weights->Release(window));
//   // The step:
//   TESSERA_ASSIGN_OR_RETURN(offload::TypedSpan own, weights->OpenOwn(id));
//   TESSERA_RETURN_IF_ERROR(weights->CloseOwn(id, /*changed=*/true));
//   TESSERA_RETURN_IF_ERROR(weights->Publish());           // Asynchronous.
//
// A window is a list of parameters that are used together, such as those of a
// layer. Windows may overlap in time and share parameters (a tied embedding): a
// sharded parameter is kept until the last window that contains it is released.
// The own elements of an encoded parameter (ShardedStateOptions::frozen_codec)
// are decoded into the gathered memory, and encoded again when they change.
// Parameters that every rank keeps whole are never released; Publish
// all-gathers their changed elements, and Wait waits for that. All ranks must
// start the same windows in the same order; otherwise they get an error
// (Operation::label). Errors name the parameter. One thread at a time.
class ModelWeights {
 public:
  // All values are zero. All arguments must outlive this; no other collectives
  // run on the groups.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Create(
      const StateContext& context, const ShardedStateOptions& options,
      const StateGroups& groups, std::shared_ptr<ShardPrefetch> prefetch);

  // Waits for gathers in progress.
  ~ModelWeights();

  // Announces a gather, so that shards in tiers are prefetched.
  void Announce(std::span<const ParameterId> window);
  // A collective. Starts to gather the parameters that no other window holds.
  absl::Status Start(std::span<const ParameterId> window);
  // Orders later work of the device's queue after the arrival of the window.
  absl::Status Wait(std::span<const ParameterId> window);
  // The values, with the parameter's shape; waits for a publication.
  // FailedPrecondition unless the parameter is whole.
  absl::StatusOr<TensorView> Value(ParameterId id);
  // FailedPrecondition, without side effects, unless the window was started.
  absl::Status Release(std::span<const ParameterId> window);
  // Must be called before values change. FailedPrecondition if a window is not
  // released.
  absl::Status EndStep();

  // The elements that this rank owns, until CloseOwn.
  absl::StatusOr<offload::TypedSpan> OpenOwn(ParameterId id);
  absl::Status CloseOwn(ParameterId id, bool changed);
  // CloseOwn for elements that another queue, which has waited for the device's
  // queue, writes until `arrived`. Precondition: !InTier(id).
  absl::Status CloseWritten(ParameterId id, Event arrived);
  // Announces that OpenOwn will be called soon.
  void AnnounceOwn(ParameterId id) { shards_->Announce(IndexOf(id)); }

  // True if the elements are in a tier, where the host may access them with
  // OpenOnHost and CloseOnHost.
  bool InTier(ParameterId id) const {
    return shards_->block(IndexOf(id)).tier != nullptr;
  }
  absl::StatusOr<offload::TypedSpan> OpenOnHost(ParameterId id);
  absl::Status CloseOnHost(ParameterId id, bool changed) {
    return shards_->CloseOnHost(IndexOf(id), changed);
  }

  // A collective: flushes changed shards to the tiers and starts to all-gather
  // the elements that each rank owns of whole parameters.
  absl::Status Publish();

 private:
  struct Weight {
    AccountedMemory memory;  // All gathered elements; empty if not gathered.
    // A gather of the shards, or a publication of a whole parameter.
    std::unique_ptr<WeightGather> gather;
    bool is_started = false;  // Started and not yet awaited.
    bool is_whole = false;
    // If it is whole. `written` is the last change of the own elements, number
    // 0 if there was none since the last publication.
    QueuePoint written;
    // The arrival of own elements that no queue has waited for yet.
    Event arrival;
    // If it is sharded.
    int64_t windows = 0;  // Windows that were started and not released.
    bool has_shard_open = false;
    // If it is encoded: the own slot, and its values while it is open.
    AccountedMemory encoded;
    AccountedMemory decoded;
    int64_t opens = 0;
    bool is_changed = false;
  };

  ModelWeights(const StateContext& context, const ShardedStateOptions& options,
               const StateGroups& groups);

  absl::Status Allocate(std::shared_ptr<ShardPrefetch> prefetch);
  absl::Status StartOne(ParameterId id);
  // Encoded parameters. Decode enqueues; Encode waits for the device.
  absl::Status AllocateEncoded(ParameterId id);
  absl::Status Decode(ParameterId id, std::span<std::byte> slot);
  absl::Status Encode(ParameterId id, std::span<const std::byte> slot);
  absl::Status EncodeOnHost(ParameterId id, std::span<const std::byte> slot);
  absl::StatusOr<offload::TypedSpan> OpenEncoded(ParameterId id);
  absl::Status CloseEncoded(ParameterId id, bool changed);
  absl::Status WaitOne(ParameterId id);
  absl::Status AwaitPublications();
  absl::Status StartPublications();
  absl::Status At(ParameterId id, const absl::Status& status) const;
  offload::TypedSpan OwnSpan(ParameterId id, std::byte* data) const;

  const StateContext context_;
  const ShardedStateOptions& options_;
  const GatherGroups groups_;
  std::unique_ptr<ShardStore> shards_;  // By id; empty for whole parameters.
  BufferPool pool_;                     // For gathered parameters.
  ById<Weight> weights_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_MODEL_WEIGHTS_H_
