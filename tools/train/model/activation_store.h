// ActivationStore: what layers keep of a micro-batch for its backward, in a
// tier between the two.
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
// Nothing is rounded. What a layer keeps of a micro-batch is one block. A tier
// that shows its blocks in place is copied to and from; blocks of others pass
// through near memory for two of them, which counts as buffers: one is written
// behind the forward that left it while the next computes, and one or two are
// read ahead of their backward, in the order of the passes
// (offload/prefetch). A block's place in the tier is used again by the window's
// next micro-batches, so that the tier holds as many as there are at once.
//
// What goes backward right behind its forward is not sent.
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
#include "base/dtype/dtype.h"
#include "offload/tier/memory_tier.h"
#include "tensor_parallel/layers/memory/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "zero3/state/shards/shard_prefetch.h"
#include "zero3/state/shards/shard_store.h"
#include "zero3/state/shards/state_device.h"

namespace tessera::train {

// Of a window, which is a place in Options::names.
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
    std::vector<std::string> names = {};  // Of the windows: "layer 3".
    std::string key_prefix = "";
    DType dtype = DType::kF32;  // Of the activations, for codecs.
    // What near memory counts against, and who gives it out.
    zero3::StateDevice device;
    tensor_parallel::Ops* ops = nullptr;  // Who copies.
  };

  // `passes` are a step's computations on this rank, in their order. The tier
  // and ops outlive the store. InvalidArgument where the tier rounds.
  static absl::StatusOr<std::unique_ptr<ActivationStore>> Create(
      std::span<const ActivationPass> passes, Options options);

  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  absl::Status BeginStep();
  absl::StatusOr<zero3::ShardTraffic> EndStep();
  // The sum over the steps; of near memory the most.
  const zero3::ShardTraffic& total_traffic() const { return total_traffic_; }

  // Whether other passes come between the place's forward and its backward.
  bool Sends(const ActivationPlace& place) const {
    return sent_.contains(place);
  }
  bool IsAway(const ActivationPlace& place) const {
    return away_.contains(place);
  }

  // Releases the tensors once they are copied. FailedPrecondition where the
  // place is away already.
  absl::Status Put(const ActivationPlace& place,
                   std::span<const tensor_parallel::KeptTensor> kept);
  // As they were. FailedPrecondition where the place is not away.
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
    size_t index = 0;  // Among those kept.
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
  std::vector<ActivationPlace> backwards_;  // Of what is sent, in their order.
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
