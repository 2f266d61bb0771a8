// GatheredParameters: parameters of stage 3, gathered from the shards of all
// ranks for as long as they are used.
//
//   TESSERA_RETURN_IF_ERROR(gathered->Start(window));      // Goes on beside
//   ...                                                    // other work.
//   TESSERA_RETURN_IF_ERROR(gathered->Wait(window));
//   TESSERA_ASSIGN_OR_RETURN(TensorView weight, gathered->Value(id));
//   ...
//   TESSERA_RETURN_IF_ERROR(gathered->Release(window));
//
// A window is a list of parameters that are used together, a layer's. Windows
// may overlap in time and share parameters (a tied embedding): a parameter
// stays until the last window that has it is released. All ranks start the same
// windows in the same order; a rank that does not gets an error, as do those
// that meet it (Operation::label). One thread at a time.
#ifndef TESSERA_ZERO3_STATE_VALUES_GATHERED_PARAMETERS_H_
#define TESSERA_ZERO3_STATE_VALUES_GATHERED_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/buffer_pool.h"
#include "zero3/state/shards/shard_store.h"
#include "zero3/state/shards/state_seat.h"

namespace tessera::zero3 {

class GatheredParameters {
 public:
  // Block shard_of[id] of `shards` is the rank's slot of parameter `id`;
  // parameters without one (kNoShard) are left alone. All outlive this; no
  // other collectives run on `group`.
  static constexpr size_t kNoShard = ~size_t{0};
  GatheredParameters(const StateSeat& seat, collectives::Communicator& group,
                     ShardStore& shards, std::vector<size_t> shard_of);

  // Waits for what was started.
  ~GatheredParameters();

  // The window's shards will be gathered soon: reads those in tiers.
  void Announce(std::span<const ParameterId> window);

  // A collective. Starts to gather what no other window has.
  absl::Status Start(std::span<const ParameterId> window);
  // Returns when the window's parameters are whole. The error names one.
  absl::Status Wait(std::span<const ParameterId> window);
  // FailedPrecondition unless the parameter is whole.
  absl::StatusOr<TensorView> Value(ParameterId id) const;
  // FailedPrecondition, and nothing changed, unless the window was started.
  absl::Status Release(std::span<const ParameterId> window);

  // Values are about to change. FailedPrecondition if a window is not released.
  absl::Status EndStep();

  // Of parameters that are gathered, or on their way.
  int64_t live_bytes() const { return live_bytes_; }

 private:
  struct Live {
    int64_t windows = 0;  // That were started and not released.
    AccountedMemory memory;
    std::optional<collectives::Work> work;
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
  collectives::Communicator& group_;
  ShardStore& shards_;
  const std::vector<size_t> shard_of_;
  BufferPool pool_;
  std::vector<Live> live_;  // By id.
  int64_t live_bytes_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_VALUES_GATHERED_PARAMETERS_H_
