// WeightGather: all-gathers one sharded parameter, optionally with int8
// messages and a second copy within the host.
//
//   WeightGather gather(seat, id, {.quantized = true}, groups, pool);
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
// keeps its part of the gathered parameter, and later gathers of the step are
// all-gathers of these parts within that group: no byte crosses hosts, the
// values have the same bits as the first time, and `own` is not read.
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
#ifndef TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_
#define TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "zero3/parameters/parameter.h"
#include "zero3/state/accounted_memory.h"
#include "zero3/state/buffer_pool.h"
#include "zero3/state/state_seat.h"

namespace tessera::zero3 {

struct GatherOptions {
  bool quantized = false;
};

struct GatherGroups {
  collectives::Communicator* shard = nullptr;
  // The ranks that hold a second copy together; null: no second copy.
  collectives::Communicator* secondary = nullptr;
};

class WeightGather {
 public:
  // All arguments must outlive this. Codes are allocated from `pool`; nothing
  // is allocated before Start.
  WeightGather(const StateSeat& seat, ParameterId id,
               const GatherOptions& options, const GatherGroups& groups,
               BufferPool& pool);

  // Waits for a gather under way.
  ~WeightGather();
  WeightGather(const WeightGather&) = delete;
  WeightGather& operator=(const WeightGather&) = delete;

  // True if the next Start reads `own`.
  bool NeedsOwn() const { return !has_secondary_; }

  // Starts to fill `whole`, layout.GatheredElements(id) elements, from every
  // rank's slot `own`. Both must stay valid until Finish; `own` may be empty
  // unless NeedsOwn(). FailedPrecondition if a gather is under way;
  // InvalidArgument for wrong sizes; ResourceExhausted if there is no room for
  // the codes.
  absl::Status Start(std::span<const std::byte> own,
                     std::span<std::byte> whole);
  // Waits until `whole` has the values. OK if no gather is under way.
  absl::Status Finish();

  // Frees the second copy, so that the next gather reads shards again. Must not
  // be called between Start and Finish.
  void Forget();

  // Bytes of the second copy and of codes under way.
  int64_t held_bytes() const;

 private:
  absl::Status StartOn(collectives::Communicator& group,
                       collectives::ConstBuffer own, collectives::Buffer whole,
                       const std::vector<int64_t>& counts);
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
  BufferPool& pool_;
  const bool quantized_;
  std::vector<int64_t> slots_;            // Elements, by rank.
  std::vector<int64_t> secondary_slots_;  // By rank of the secondary group.

  std::optional<collectives::Work> work_;
  std::span<std::byte> whole_;
  AccountedMemory encoded_;
  AccountedMemory secondary_;
  bool has_secondary_ = false;
  bool starts_secondary_ = false;  // The gather under way is of second copies.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_WEIGHT_GATHER_H_
