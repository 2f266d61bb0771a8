// LiveParameters: sharded parameters, gathered before use and released after.
//
//   TESSERA_RETURN_IF_ERROR(live->Acquire(window));
//   TESSERA_ASSIGN_OR_RETURN(TensorView weight, live->Value(id));
//   ...
//   TESSERA_RETURN_IF_ERROR(live->Release(window));
//
// In the first step a window's parameters are released with it. From then on
// the order of use is known (UseGuard): what is used again soon stays, as
// PlanReuse says, and the next windows' gathers go on while this one computes,
// up to the first that the limit has no room for. Of the gathers behind these
// the next few shards are read ahead from their tier. All ranks do the same, in
// the same order. One thread at a time.
#ifndef TESSERA_ZERO3_STATE_VALUES_LIVE_PARAMETERS_H_
#define TESSERA_ZERO3_STATE_VALUES_LIVE_PARAMETERS_H_

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
#include "zero3/parameters/use/reuse_plan.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/shard_store.h"
#include "zero3/state/shards/state_seat.h"
#include "zero3/state/values/use_guard.h"

namespace tessera::zero3 {

struct LiveOptions {
  ReuseOptions reuse;            // In elements.
  int64_t prefetch_windows = 1;  // Gathered ahead, as long as max_live allows.
  int64_t prefetch_shards = 16;  // Read ahead of their gathers.
};

class LiveParameters {
 public:
  // Block shard_of[id] of `shards` is the rank's slot of parameter `id`;
  // parameters without one (kNoShard) are left alone. All outlive this; no
  // other collectives run on `group`.
  static constexpr size_t kNoShard = ~size_t{0};
  LiveParameters(const StateSeat& seat, const LiveOptions& options,
                 collectives::Communicator& group, UseGuard& guard,
                 ShardStore& shards, const std::vector<size_t>& shard_of);

  // Waits for what was started.
  ~LiveParameters();

  // A collective. Makes every parameter of the window whole, until Release.
  // FailedPrecondition where another window is still acquired, and as
  // UseGuard::Use.
  absl::Status Acquire(std::span<const ParameterId> window);
  // FailedPrecondition where it is not acquired.
  absl::StatusOr<TensorView> Value(ParameterId id) const;
  absl::Status Release(std::span<const ParameterId> window);

  // Nothing is live any more: values are about to change. FailedPrecondition
  // where a window is acquired.
  absl::Status EndStep();

  // Elements that are gathered, or on their way.
  int64_t live_elements() const { return live_elements_; }
  // Parameters gathered since the beginning.
  int64_t gathers() const { return gathers_; }

 private:
  struct Live {
    AccountedMemory memory;
    std::optional<collectives::Work> work;
    bool is_live = false;  // Gathered, or on its way.
    bool is_acquired = false;
  };

  Live& LiveOf(ParameterId id) {
    return live_[static_cast<size_t>(id.value())];
  }
  size_t ShardOf(ParameterId id) const {
    return shard_of_[static_cast<size_t>(id.value())];
  }
  absl::Status PlanWhenKnown();
  absl::Status StartGather(ParameterId id);
  absl::Status FinishGather(ParameterId id);
  absl::Status GatherAhead(size_t window);
  void Drop(ParameterId id);

  const StateSeat seat_;
  const LiveOptions options_;
  collectives::Communicator& group_;
  UseGuard& guard_;
  ShardStore& shards_;
  const std::vector<size_t> shard_of_;
  std::vector<Live> live_;  // By id.
  std::optional<ReusePlan> plan_;
  bool has_window_ = false;
  int64_t live_elements_ = 0;
  int64_t gathers_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_VALUES_LIVE_PARAMETERS_H_
