// Validate: proves that a schedule is complete, ordered and free of deadlocks,
// and that parameters are gathered whenever they are used.
#ifndef TESSERA_PIPELINE_PROOF_VALIDATE_H_
#define TESSERA_PIPELINE_PROOF_VALIDATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The bytes of a stage's gathered parameters and unreduced gradients, in
// addition to the shards that a rank always holds. Indexed by stage; empty
// means zeros.
struct ParameterSizes {
  // Held from UNSHARD to RESHARD.
  std::vector<int64_t> unsharded_bytes = {};
  // Held from the first B or W after a REDUCE_GRAD to the end of the next
  // reduction. A reduction ends no later than the rank's next REDUCE_GRAD,
  // since at most one is in flight.
  std::vector<int64_t> unreduced_bytes = {};
  // Maximum of both together on a rank; 0: unlimited.
  int64_t limit = 0;
};

struct ParameterPeaks {
  // By rank, the maxima over time: the number of gathered stages, the bytes of
  // gathered parameters, and the bytes of both these and unreduced gradients.
  std::vector<int64_t> unsharded;
  std::vector<int64_t> unsharded_bytes;
  std::vector<int64_t> bytes;
};

// Proves that a schedule gathers parameters and reduces gradients correctly,
// within a memory limit. It checks three properties. (1) If a rank gathers a
// stage at all, UNSHARD and RESHARD of it alternate, the last one is a RESHARD,
// and every F, B and I of the stage is between the two (W needs no parameters).
// (2) If the schedule reduces any stage, it reduces every stage on each rank
// that holds it, after the last weight gradient of the stage; if the rank
// computes weight gradients of the stage, there is at least one before its
// first reduction and between any two; otherwise there is at most one
// reduction. (3) The limit of `sizes` is never exceeded. InvalidArgument
// otherwise, with the rank, the position and the action, and for the limit the
// stages held and their bytes. Precondition: stages exist (see Coverage).
//
// Replicas. The ranks that share the parameters of a stage (data-parallel
// ranks) run the same list, each in a pipeline of its own, and UNSHARD and
// REDUCE_GRAD are collectives among them. That cannot deadlock if one pipeline
// alone cannot: a run of one pipeline puts all messages and collectives into
// one total order, which agrees with every list. Consider the first event in
// that order that some replica has not completed. All replicas have completed
// the events before it, so its participants have reached it in every replica,
// and it completes.
absl::StatusOr<ParameterPeaks> CheckParameters(
    const Schedule& schedule, const ParameterSizes& sizes = {});

// The representation of messages between ranks in a schedule.
enum class Communication : uint8_t {
  kExplicit,  // Lowered: the schedule has all sends and receives.
  kImplied,   // No sends and receives: computations wait for others.
};

struct ValidateOptions {
  Communication communication = Communication::kExplicit;
  // The number of sent messages that a channel holds before they are
  // received. 0 is rendezvous, the strictest: a schedule that passes with 0
  // passes with any number. Unused if communication is implied.
  int64_t buffers = 0;
  // Sizes and limit of gathered parameters and unreduced gradients.
  ParameterSizes parameters = {};
};

struct Proof {
  int64_t computations = 0;  // F, B, I and W.
  int64_t messages = 0;      // Sent, or implied.

  // By rank, the largest number of micro-batches (summed over its stages) that
  // are at the same time between their forward and their B or W; and the same
  // without those that only wait for their W, that is, between their forward
  // and their B or I. Both actions of a pair count at the same time.
  std::vector<int64_t> peak_activations;
  std::vector<int64_t> peak_before_backward;

  // By rank, the largest number of stages whose parameters are gathered, their
  // bytes, and the largest number of bytes together with unreduced gradients
  // (ValidateOptions::parameters).
  std::vector<int64_t> peak_unsharded;
  std::vector<int64_t> peak_unsharded_bytes;
  std::vector<int64_t> peak_parameter_bytes;
};

// Proves that a schedule is correct, or returns its first error.
//
//   TESSERA_ASSIGN_OR_RETURN(Proof proof, Validate(schedule));
//   proof.peak_activations[0];      // micro-batches alive on rank 0 at most
//
// It proves that
//   - every micro-batch passes every stage forward and backward exactly once
//     (B, or I and then W), on the rank that schedule.RankOf names;
//   - every action comes after those that it needs, on its rank and across
//     ranks;
//   - every message between neighbouring stages on different ranks is sent once
//     and received once, none is superfluous, and each receive gets its own
//     message: there is one first-in-first-out channel for each ordered pair of
//     ranks and each direction, forward and backward;
//   - pairs that run together are a forward and a B or I, of which neither
//     needs the other, or a send and a receive with one rank (an exchange);
//   - parameters are gathered when they are used, gradients are reduced after
//     the last weight gradient, and no rank exceeds its limit of bytes;
//     replicas that share parameters do not deadlock (CheckParameters);
//   - no deadlock, even where a send completes only when its receive is reached
//     (rendezvous), or with a given number of buffers per channel.
//
// InvalidArgument if the schedule is invalid. The message names the rank, the
// position in its list from 0, the action and what it waits for, and for a
// deadlock the cycle: "deadlock: rank 0, action 1 (0SEND_F0) waits for rank 1,
// action 5 (1RECV_F0), which comes after rank 1, action 4 (1SEND_B3), which
// waits for ...". Time and memory are linear in the number of actions.
absl::StatusOr<Proof> Validate(const Schedule& schedule,
                               const ValidateOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_VALIDATE_H_
