// GradientReduction: the messages of buckets of gradients, a reduce-scatter
// over a group, optionally with int8 values.
#ifndef TESSERA_ZERO3_STATE_GRADIENT_REDUCTION_H_
#define TESSERA_ZERO3_STATE_GRADIENT_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

struct ReductionOptions {
  bool quantized = false;
  bool average = false;  // Average over the group; otherwise sum.
  // Otherwise every rank gets the sums of whole buckets (all-reduce).
  bool scatters = true;
};

// A reduction in progress. The destructor waits. Move-only.
class PendingReduction {
 public:
  PendingReduction(PendingReduction&&) = default;
  PendingReduction& operator=(PendingReduction&&) = default;

  // Orders later work of the queue after the reduction. Call it once per
  // reduction and, because it performs the second hop, in the order of the
  // Starts on every rank.
  absl::Status Wait();

 private:
  friend class GradientReduction;
  struct State;
  struct StateDeleter {
    void operator()(State* state) const;
  };
  explicit PendingReduction(std::unique_ptr<State, StateDeleter> state);

  std::unique_ptr<State, StateDeleter> state_;
};

// Reduce-scatters buckets of gradients over a group, optionally with int8
// messages.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto reduction,
//       GradientReduction::Create(group, {.quantized = true}, pool));
//   TESSERA_ASSIGN_OR_RETURN(PendingReduction pending,
//                            reduction->Start(bucket, counts));
//   Compute();
//   TESSERA_RETURN_IF_ERROR(pending.Wait());
//   // The rank's own block of the bucket has the sums.
//
// quantized (qgZ): each rank encodes the blocks of all others (int8_blocks.h)
// and sends them in an all-to-all; the owner decodes them and adds in f32, in
// the order of ranks. Every contribution is rounded once; a ring reduce-scatter
// of codes would round n - 1 times. Types without an int8 form (f64) are
// reduced without quantisation.
//
// If the group's hierarchy (CommunicatorOptions) has several hosts with the
// same number of ranks, more than one each, there are two hops. In the first
// hop, within the host, local rank l receives and adds the blocks of local rank
// l of every host. In the second hop, across hosts, these sums are encoded
// again and sent to their owners. Blocks are sent in the order of their
// receivers (slice reordering), so no data is moved between the hops.
//
// Bytes that each rank sends for a bucket of B elements of w bytes, split
// evenly over n ranks with l on each host:
//
//   native      (n-1)/n * B * w
//   one hop     (n-1)/n * Q        Q = n * Int8Bytes(B/n), about 1.03 B
//   two hops    (l-1)/l * Q within the host, (n/l-1)/(n/l) * Q/l across
//
// Error bound for one hop: |sum - exact| <= kInt8Error * (sum over
// contributions of the largest magnitude in their block), plus the rounding of
// n additions in f32. Two hops add the same bound for the sums of the hosts.
//
// ZeRO++, Wang et al., arXiv 2306.10209, section 4.3.
class GradientReduction {
 public:
  // A collective of `group`. Int8 messages are allocated from `pool`, whose
  // device works on the gradients. Both must outlive this.
  static absl::StatusOr<std::unique_ptr<GradientReduction>> Create(
      collectives::Communicator& group, const ReductionOptions& options,
      BufferPool& pool);
  ~GradientReduction();

  // A collective with the label Operation::label. Starts to reduce `values`,
  // which the queue's work so far has written: the blocks of all ranks in
  // order, where block r has counts[r] elements. `values` must stay valid until
  // Wait; then the rank's own block has the sums, and the other blocks are
  // undefined. InvalidArgument if counts do not match the group or the values;
  // ResourceExhausted if there is no room for the messages.
  absl::StatusOr<PendingReduction> Start(collectives::Buffer values,
                                         const std::vector<int64_t>& counts,
                                         uint32_t label = 0);

  // The number of hops of a quantised bucket: 1 or 2.
  int hops() const { return across_ == nullptr ? 1 : 2; }

  // Aborts the groups that this object created.
  void Abort(std::string_view reason);

  // The groups of the two hops; null with one hop.
  collectives::Communicator* within_host() { return within_.get(); }
  collectives::Communicator* across_hosts() { return across_.get(); }

 private:
  friend class PendingReduction;

  GradientReduction(collectives::Communicator& group,
                    const ReductionOptions& options, BufferPool& pool);
  Queue& queue() const { return *pool_.device().queue; }
  StateOps& ops() const { return *pool_.device().ops; }
  absl::Status JoinHosts();
  absl::Status StartNative(collectives::Buffer values,
                           const std::vector<int64_t>& counts,
                           PendingReduction::State& state);
  absl::Status StartQuantized(collectives::Buffer values,
                              const std::vector<int64_t>& counts,
                              PendingReduction::State& state);

  collectives::Communicator& group_;
  const ReductionOptions options_;
  BufferPool& pool_;
  std::unique_ptr<collectives::Communicator> within_;
  std::unique_ptr<collectives::Communicator> across_;
  // For each receiver of the first hop, the ranks whose blocks it receives;
  // with one hop only its own rank.
  std::vector<std::vector<int64_t>> owners_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_GRADIENT_REDUCTION_H_
