// WeightGather: makes one sharded parameter whole, in fewer bytes on the wire
// than an all-gather of its values.
//
//   WeightGather gather(seat, id, {.quantized = true}, {.shard = &group});
//   // Every step, before each use:
//   TESSERA_RETURN_IF_ERROR(gather.Start(own, whole));
//   Compute();
//   TESSERA_RETURN_IF_ERROR(gather.Finish());
//   // The values change:
//   gather.Forget();
//
// quantized (qwZ): every rank encodes its slot as int8_blocks.h says, the codes
// are gathered and decoded. A rank decodes its own slot too, so all ranks
// compute with the same bits; the shard itself is not changed. Types without an
// int8 form (f64) are gathered as they are.
//
// secondary (hpZ): the ranks of a host. From the first gather of a step on,
// each keeps its part of the whole parameter as gathered, and later gathers of
// the step are all-gathers of these parts over that group alone: no byte
// crosses hosts, the values have the same bits as the first time, and `own` is
// not read.
//
// Each rank sends, for a parameter of G gathered elements of w bytes, on n
// ranks of which h are in the secondary group:
//
//   first gather of a step, native      (n-1)/n * G * w
//   first gather of a step, quantized   (n-1)/n * (sum of Int8Bytes(slot))
//   later gathers with a secondary      (h-1)/h * G * w, within the host
//
// ZeRO++, Wang et al., arXiv 2306.10209, sections 4.1 and 4.2.
//
// Start is a collective of the group that the call uses; all ranks make the
// same calls in the same order. One thread at a time.
#ifndef TESSERA_ZERO3_STATE_WIRE_WEIGHT_GATHER_H_
#define TESSERA_ZERO3_STATE_WIRE_WEIGHT_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "zero3/parameters/parameter.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/state_seat.h"

namespace tessera::zero3 {

struct GatherOptions {
  bool quantized = false;
};

struct GatherGroups {
  collectives::Communicator* shard = nullptr;
  // The ranks that hold a second copy together; null: none is kept.
  collectives::Communicator* secondary = nullptr;
};

class WeightGather {
 public:
  // All outlive this. Nothing is allocated before Start.
  WeightGather(const StateSeat& seat, ParameterId id,
               const GatherOptions& options, const GatherGroups& groups);

  // Waits for what was started.
  ~WeightGather();
  WeightGather(const WeightGather&) = delete;
  WeightGather& operator=(const WeightGather&) = delete;

  // Whether the next Start reads `own`.
  bool NeedsOwn() const { return !has_secondary_; }

  // Starts to fill `whole`, layout.GatheredElements(id) elements, from every
  // rank's `own`, its slot. Both stay until Finish; `own` may be empty where
  // it is not needed. FailedPrecondition where a gather was not finished;
  // InvalidArgument where sizes do not fit; ResourceExhausted without room for
  // the codes.
  absl::Status Start(std::span<const std::byte> own,
                     std::span<std::byte> whole);
  // Waits; then `whole` has the values. OK where nothing was started.
  absl::Status Finish();

  // Drops the second copy: the next gather reads shards again. Not between
  // Start and Finish.
  void Forget();

  // The second copy and the codes on their way.
  int64_t held_bytes() const;

 private:
  absl::Status StartNative(std::span<const std::byte> own);
  absl::Status StartQuantized(std::span<const std::byte> own);
  absl::Status StartSecondary();
  absl::Status Decode();
  absl::Status KeepSecondary();
  std::span<std::byte> SecondaryIn(std::span<std::byte> whole) const;
  absl::Status CheckSizes(std::span<const std::byte> own,
                          std::span<const std::byte> whole) const;

  const StateSeat& seat_;
  const Parameter& parameter_;
  const GatherGroups groups_;
  const bool quantized_;
  std::vector<int64_t> slots_;            // Elements, by rank.
  std::vector<int64_t> secondary_slots_;  // By rank of the secondary group.

  std::optional<collectives::Work> work_;
  std::span<std::byte> whole_;
  AccountedMemory encoded_;
  AccountedMemory secondary_;
  bool has_secondary_ = false;
  bool starts_secondary_ = false;  // What is on its way is of second copies.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_WIRE_WEIGHT_GATHER_H_
