// Costs: the time and memory of a pipeline's actions, and the links between its
// ranks.
//
//   Costs costs = Costs::Uniform(
//       4, {.forward = 1, .backward_input = 1, .backward_weight = 1});
//   costs.links.everywhere = {.latency = 5e-6, .bandwidth = 25e9};
//   costs.overlap_communication = false;
//
// Times are seconds, or any unit: results are in the same. Memory is bytes.
#ifndef TESSERA_PIPELINE_SIMULATE_COSTS_H_
#define TESSERA_PIPELINE_SIMULATE_COSTS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Latency and bandwidth between the ranks of a pipeline.
//
//   Links links;
//   links.everywhere = {.latency = 5e-6, .bandwidth = 25e9};
//   links.exceptions[{3, 4}] = {.latency = 2e-5, .bandwidth = 5e9};
//
// A message of n bytes takes latency + n / bandwidth (Hockney, "The
// communication challenge for MPP", 1994). For n / bandwidth of it the link is
// taken: the next message of the same ordered pair of ranks starts after that.
// The two directions between two ranks are two links. Stages of one rank need
// none.
struct Link {
  double latency = 0;  // In the unit of the other times, seconds as a rule.
  // Bytes in such a unit; infinite: messages take the latency only and never
  // wait for each other.
  double bandwidth = std::numeric_limits<double>::infinity();
};

struct Links {
  Link everywhere;
  // By sender and receiver.
  std::map<std::pair<int32_t, int32_t>, Link> exceptions;

  const Link& Of(int32_t sender, int32_t receiver) const {
    const auto exception = exceptions.find({sender, receiver});
    return exception == exceptions.end() ? everywhere : exception->second;
  }
};

// InvalidArgument if a latency is negative or not finite, a bandwidth is not
// more than 0, or an exception is for a rank that is not one of `ranks`, or for
// a rank and itself.
absl::Status CheckLinks(const Links& links, int64_t ranks);

// The costs of one micro-batch in a stage, unless stated otherwise.
struct StageCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  // From the end of a computation until its result is at another rank: latency
  // and time on the wire. Zero between stages of one rank. The time on Links is
  // added; messages do not wait for each other because of this delay.
  double communication = 0;

  // Bytes that an action adds to the rank's memory when it begins (positive) or
  // releases when it ends (negative). A whole backward does both of its parts.
  int64_t forward_bytes = 1;
  int64_t backward_input_bytes = 0;
  int64_t backward_weight_bytes = -1;

  // The sizes of the messages that the stage sends: its output to the stage
  // after it, the gradient of its input to the one before.
  int64_t activation_bytes = 0;
  int64_t gradient_bytes = 0;

  // Costs of the stage's parameters: the times of UNSHARD and REDUCE_GRAD
  // (RESHARD takes none), the bytes held from the begin of an UNSHARD to the
  // RESHARD, and the time of the optimizer's step.
  double unshard = 0;
  double reduce_gradient = 0;
  int64_t unsharded_bytes = 0;
  // Bytes of whole gradients, held from the begin of the first B or W after a
  // REDUCE_GRAD to the end of the next one. 0 if the rank holds the stage's
  // gradients at all times.
  int64_t unreduced_bytes = 0;
  double optimizer = 0;

  // The time of a computation, UNSHARD or REDUCE_GRAD; 0 for other kinds.
  double TimeOf(ActionKind kind) const;
  // The bytes that a computation adds or releases; 0 for other actions.
  int64_t BytesOf(ActionKind kind) const;
};

struct Costs {
  std::vector<StageCosts> stages;

  // By default messages take no time on links.
  Links links;
  // If true, messages overlap the computations of both ranks. Otherwise they
  // take the ranks' own time: see Simulate.
  bool overlap_communication = true;
  // If `synchronise_optimizer`, all ranks wait for each other before the
  // optimizer's step (norm of the gradients, search for overflows); the
  // exchange takes the given time once the last rank has arrived.
  bool synchronise_optimizer = false;
  double synchronisation = 0;

  // The same for all stages.
  static Costs Uniform(int64_t stages, const StageCosts& costs);
};

// InvalidArgument if there are not as many as `stages`, a time is negative
// or not finite, a message's or the parameters' size is negative, or the links
// are wrong (CheckLinks, for as many ranks as stages, which is the most that
// there may be).
absl::Status CheckCosts(const Costs& costs, int64_t stages);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_COSTS_H_
