// WeightGather: the all-gather of a sharded parameter.
#ifndef TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_
#define TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

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

  // This rank's slot in the gathered elements.
  std::span<std::byte> SlotIn(std::span<std::byte> whole) const;
  // True if the next Start reads `own`.
  bool NeedsOwn() const { return !has_secondary_; }

  // Starts to fill `whole`, layout.GatheredElements(id) elements, from every
  // rank's slot `own`, which may be SlotIn(whole). Both must stay valid until
  // Finish; `own` may be empty unless NeedsOwn(). The device's queue writes
  // `own` and uses `whole` before `ready`; codes are written by later work of
  // that queue. FailedPrecondition if a gather is in flight; InvalidArgument
  // for wrong sizes; ResourceExhausted if there is no room for the codes.
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

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_
