// GatheredParameters: the parameters of stage 3, which are gathered from the
// shards of all ranks while they are in use.
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
// ranks start the same windows in the same order; otherwise they get an error
// (Operation::label). One thread at a time. Messages:
// zero3/state/weight_gather.h.
#ifndef TESSERA_ZERO3_STATE_GATHERED_PARAMETERS_H_
#define TESSERA_ZERO3_STATE_GATHERED_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "zero3/state/accounted_memory.h"
#include "zero3/state/buffer_pool.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_seat.h"
#include "zero3/state/weight_gather.h"

namespace tessera::zero3 {

class GatheredParameters {
 public:
  // Block shard_of[id] of `shards` is the rank's slot of parameter `id`;
  // parameters with kNoShard are ignored. All arguments must outlive this; no
  // other collectives run on the groups.
  static constexpr size_t kNoShard = ~size_t{0};
  GatheredParameters(const StateSeat& seat, const GatherOptions& options,
                     const GatherGroups& groups, ShardStore& shards,
                     std::vector<size_t> shard_of);

  // Waits for gathers under way.
  ~GatheredParameters();

  // Announces a gather, so that shards in tiers are read ahead.
  void Announce(std::span<const ParameterId> window);

  // A collective. Starts to gather the parameters that no other window holds.
  absl::Status Start(std::span<const ParameterId> window);
  // Returns when the window's parameters are whole. Errors name the parameter.
  absl::Status Wait(std::span<const ParameterId> window);
  // FailedPrecondition unless the parameter is whole.
  absl::StatusOr<TensorView> Value(ParameterId id) const;
  // FailedPrecondition, without side effects, unless the window was started.
  absl::Status Release(std::span<const ParameterId> window);

  // Call it before values change. FailedPrecondition if a window is not
  // released.
  absl::Status EndStep();

  // Bytes of parameters that are gathered or being gathered.
  int64_t live_bytes() const { return live_bytes_; }

 private:
  struct Live {
    int64_t windows = 0;  // Windows that were started and not released.
    AccountedMemory memory;
    std::unique_ptr<WeightGather> gather;  // From the first Start on.
    bool is_started = false;               // Until it was waited for.
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

  const StateSeat seat_;
  const GatherOptions options_;
  const GatherGroups groups_;
  ShardStore& shards_;
  const std::vector<size_t> shard_of_;
  BufferPool pool_;
  std::vector<Live> live_;  // By id.
  int64_t live_bytes_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GATHERED_PARAMETERS_H_
