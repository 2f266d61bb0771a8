// A store that offloads the saved activations of each layer and micro-batch to
// a tier between its forward and its backward.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto store, ActivationStore::Create(passes, {.tier = &files, ...}));
//   TESSERA_RETURN_IF_ERROR(store->BeginStep());
//   ... the forward of window 3 and micro-batch 0 ...
//   if (store->Sends({3, 0})) {
//     TESSERA_RETURN_IF_ERROR(store->Put({3, 0}, activations.Kept()));
//   }
//   ... other passes; the memory of the tensors is free ...
//   TESSERA_RETURN_IF_ERROR(store->Take({3, 0}, activations.Kept()));
//   ... its backward ...
//   TESSERA_ASSIGN_OR_RETURN(zero3::ShardTraffic traffic, store->EndStep());
//
// The activations of one layer and micro-batch form one block, which is stored
// losslessly. If the tier supports in-place access (MemoryTier::Map), a block
// is copied directly to and from the tier. Otherwise it is staged in near
// memory for two blocks, which counts as buffers: writes overlap the next
// forward, and one or two blocks are prefetched in the order of the backward
// passes (offload/prefetch). Later micro-batches of the window reuse blocks, so
// the tier holds as many blocks as are in flight at once. Activations are not
// offloaded if their backward directly follows their forward.
//
// Errors name the layer and the micro-batch. One thread at a time.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_ACTIVATION_STORE_H_
#define TESSERA_TOOLS_TRAIN_MODEL_ACTIVATION_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "offload/tier/memory_tier.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "zero3/state/shard_store.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

// A micro-batch of a window; `window` is an index into Options::names.
struct ActivationPlace {
  size_t window = 0;
  int32_t microbatch = 0;

  friend auto operator<=>(const ActivationPlace&,
                          const ActivationPlace&) = default;
};

struct ActivationPass {
  ActivationPlace place;
  bool is_forward = false;
};

class ActivationStore {
 public:
  struct Options {
    offload::MemoryTier* tier = nullptr;
    std::vector<std::string> names = {};  // By window, for errors: "layer 3".
    std::string key_prefix = "";
    DType dtype = DType::kF32;  // The type of activations, for codecs.
    // Allocates near memory.
    zero3::StateDevice device;
  };

  // `passes` are a step's computations on this rank, in order. The tier and
  // device must outlive the store. InvalidArgument if the tier's codec rounds.
  static absl::StatusOr<std::unique_ptr<ActivationStore>> Create(
      std::span<const ActivationPass> passes, Options options);

  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  absl::Status BeginStep();
  absl::StatusOr<zero3::ShardTraffic> EndStep();
  // The traffic of all steps; near_bytes is the maximum.
  const zero3::ShardTraffic& total_traffic() const { return total_traffic_; }

  // True if other passes lie between the forward and the backward of `place`.
  bool Sends(const ActivationPlace& place) const {
    return sent_.contains(place);
  }
  bool IsAway(const ActivationPlace& place) const {
    return away_.contains(place);
  }

  // Copies the tensors to the tier and releases them. FailedPrecondition if
  // `place` is already offloaded.
  absl::Status Put(const ActivationPlace& place,
                   std::span<const tensor_parallel::KeptTensor> kept);
  // Restores the tensors. FailedPrecondition if `place` is not offloaded.
  absl::Status Take(const ActivationPlace& place,
                    std::span<const tensor_parallel::KeptTensor> kept);

 private:
  // Room for one block.
  struct Slot {
    std::string key;
    int64_t bytes = 0;
    bool is_used = false;
    std::unique_ptr<zero3::ShardStore> store;
  };
  struct SentTensor {
    size_t index = 0;  // In the list of kept slots.
    int64_t offset = 0;
    int64_t bytes = 0;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape = {};
  };
  struct Block {
    Slot* slot = nullptr;
    std::vector<SentTensor> tensors;
  };

  explicit ActivationStore(Options options)
      : options_(std::move(options)), slots_(options_.names.size()) {}

  void ReadOrder(std::span<const ActivationPass> passes);
  absl::StatusOr<Slot*> FindSlot(size_t window, int64_t bytes);
  absl::Status MakeRoom(Slot& slot, int64_t bytes);
  absl::Status Send(const ActivationPlace& place,
                    std::span<const tensor_parallel::KeptTensor> kept);
  absl::Status BringBack(const ActivationPlace& place,
                         std::span<const tensor_parallel::KeptTensor> kept);
  void AnnounceAfter(const ActivationPlace& place);
  absl::Status At(const ActivationPlace& place, std::string_view what,
                  const absl::Status& status) const;
  std::string NameOf(const ActivationPlace& place) const;

  const Options options_;
  std::set<ActivationPlace> sent_;
  std::vector<ActivationPlace> backwards_;  // The offloaded ones, in order.
  size_t next_backward_ = 0;
  int64_t most_away_ = 0;
  bool in_step_ = false;
  zero3::ShardTraffic total_traffic_;
  std::shared_ptr<zero3::ShardPrefetch> prefetch_;  // From the first block on.
  std::vector<std::vector<std::unique_ptr<Slot>>> slots_;  // By window.
  std::map<ActivationPlace, Block> away_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_ACTIVATION_STORE_H_
