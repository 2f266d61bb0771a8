// GradientReduction: sums buckets of gradients over a group and leaves each
// rank its block, in fewer bytes on the wire than a reduce-scatter of values.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto reduction, GradientReduction::Create(group, {.quantized = true},
//                                                 device));
//   TESSERA_ASSIGN_OR_RETURN(PendingReduction pending,
//                            reduction->Start(bucket, counts));
//   Compute();
//   TESSERA_RETURN_IF_ERROR(pending.Wait());
//   // The rank's own block of the bucket has the sums.
//
// quantized (qgZ): each rank encodes the blocks of all others as int8_blocks.h
// says and sends them in an all-to-all; the owner decodes and adds in f32, in
// the order of ranks. So every contribution is rounded once, where a
// reduce-scatter of codes in a ring would round n - 1 times. Types without an
// int8 form (f64) are reduced as they are.
//
// Where the group's hierarchy (CommunicatorOptions) says that it spans several
// hosts of equally many ranks, more than one, there are two hops: within the
// host, rank l of it receives and adds the blocks of the l-th rank of every
// host; these sums are encoded again and go across to their owners, the ranks
// of the same place in their hosts. Blocks lie in the order of their receivers,
// not of the ranks (slice reordering), so nothing has to be moved in between.
//
// Each rank sends, for a bucket of B elements of w bytes, evenly split over n
// ranks, of which l are on each of n/l hosts:
//
//   native      (n-1)/n * B * w
//   one hop     (n-1)/n * Q        Q = n * Int8Bytes(B/n), about 1.03 B
//   two hops    (l-1)/l * Q within the host, (n/l-1)/(n/l) * Q/l across
//
// |sum - exact| <= kInt8Error * (sum over contributions of the largest
// magnitude of their block) for one hop, and that of the hosts' sums again for
// two, besides the rounding of n additions in f32.
//
// ZeRO++, Wang et al., arXiv 2306.10209, section 4.3.
#ifndef TESSERA_ZERO3_STATE_WIRE_GRADIENT_REDUCTION_H_
#define TESSERA_ZERO3_STATE_WIRE_GRADIENT_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "offload/tier/accounting.h"

namespace tessera::zero3 {

struct ReductionOptions {
  bool quantized = false;
  bool average = false;  // Over the group; otherwise sums.
};

// A reduction on its way. Waits when it is destroyed. Move-only.
class PendingReduction {
 public:
  PendingReduction(PendingReduction&&) = default;
  PendingReduction& operator=(PendingReduction&&) = default;

  // Once. Of several, in the order of their Starts, on every rank: the second
  // hop is made here.
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

class GradientReduction {
 public:
  // A collective of `group`, which outlives this. `device` is what messages in
  // memory count against.
  static absl::StatusOr<std::unique_ptr<GradientReduction>> Create(
      collectives::Communicator& group, const ReductionOptions& options,
      std::shared_ptr<offload::Accounting> device);
  ~GradientReduction();

  // A collective: starts to reduce `values`, the blocks of all ranks one after
  // the other, of `counts` elements, which stay until Wait. Other blocks than
  // the rank's own are undefined afterwards. InvalidArgument where counts do
  // not fit the group or the values; ResourceExhausted without room for the
  // messages.
  absl::StatusOr<PendingReduction> Start(collectives::Buffer values,
                                         const std::vector<int64_t>& counts);

  // How many messages a bucket takes: 1 or 2.
  int hops() const { return across_ == nullptr ? 1 : 2; }

  // Breaks the groups that this has made, for every rank that waits in them.
  void Abort(std::string_view reason);

  // The groups of two hops; null where there is one.
  collectives::Communicator* within_host() { return within_.get(); }
  collectives::Communicator* across_hosts() { return across_.get(); }

 private:
  friend class PendingReduction;

  GradientReduction(collectives::Communicator& group,
                    const ReductionOptions& options,
                    std::shared_ptr<offload::Accounting> device);
  absl::Status JoinHosts();
  absl::Status StartNative(collectives::Buffer values,
                           const std::vector<int64_t>& counts,
                           PendingReduction::State& state);
  absl::Status StartQuantized(collectives::Buffer values,
                              const std::vector<int64_t>& counts,
                              PendingReduction::State& state);

  collectives::Communicator& group_;
  const ReductionOptions options_;
  const std::shared_ptr<offload::Accounting> device_;
  std::unique_ptr<collectives::Communicator> within_;
  std::unique_ptr<collectives::Communicator> across_;
  // The ranks whose blocks each receiver of the first hop gets, by the
  // receiver's rank there: with one hop its own alone.
  std::vector<std::vector<int64_t>> owners_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_WIRE_GRADIENT_REDUCTION_H_
