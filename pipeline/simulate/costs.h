// Costs: the time and memory of a pipeline's actions, and the links between its
// ranks.
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

// Latency and bandwidth between two ranks.
//
// A message of n bytes takes latency + n / bandwidth (Hockney, "The
// communication challenge for MPP", 1994). It occupies the link for n /
// bandwidth of that time, after which the next message of the same ordered pair
// of ranks can start. Each direction between two ranks is a link of its own.
// Stages on one rank need no link.
struct Link {
  double latency = 0;  // In the unit of the other times, usually seconds.
  // Bytes per unit of time. If infinite, messages take only the latency and
  // never wait for each other.
  double bandwidth = std::numeric_limits<double>::infinity();
};

// The links between the ranks of a pipeline.
//
//   Links links;
//   links.everywhere = {.latency = 5e-6, .bandwidth = 25e9};
//   links.exceptions[{3, 4}] = {.latency = 2e-5, .bandwidth = 5e9};
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
// positive, or an exception names a rank outside [0, ranks), or the same rank
// twice.
absl::Status CheckLinks(const Links& links, int64_t ranks);

// The costs of one micro-batch in a stage, unless stated otherwise.
struct StageCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  // The delay from the end of a computation until its result is at another rank
  // (latency and transfer); unused between stages on one rank. It is added to
  // the time on Links, and does not make messages wait for each other.
  double communication = 0;

  // Bytes that an action allocates on the rank when it begins (positive) or
  // frees when it ends (negative). For a B both backward values apply.
  int64_t forward_bytes = 1;
  int64_t backward_input_bytes = 0;
  int64_t backward_weight_bytes = -1;

  // The sizes of the messages that the stage sends: its output to the next
  // stage, its input gradient to the previous one.
  int64_t activation_bytes = 0;
  int64_t gradient_bytes = 0;

  // Costs of the stage's parameters: the times of UNSHARD and REDUCE_GRAD
  // (RESHARD takes no time), the bytes held from the begin of an UNSHARD to the
  // RESHARD, and the time of the optimizer's step.
  double unshard = 0;
  double reduce_gradient = 0;
  int64_t unsharded_bytes = 0;
  // Bytes of unreduced gradients, held from the begin of the first B or W after
  // a REDUCE_GRAD to the end of the next one. 0 if the rank holds the stage's
  // gradients at all times.
  int64_t unreduced_bytes = 0;
  double optimizer = 0;

  // The time of a computation, UNSHARD or REDUCE_GRAD; 0 for other kinds.
  double TimeOf(ActionKind kind) const;
  // The bytes that a computation allocates or frees; 0 for other kinds.
  int64_t BytesOf(ActionKind kind) const;
};

// Example:
//
//   Costs costs = Costs::Uniform(
//       4, {.forward = 1, .backward_input = 1, .backward_weight = 1});
//   costs.links.everywhere = {.latency = 5e-6, .bandwidth = 25e9};
//   costs.overlap_communication = false;
//
// Times are in seconds or any other unit; results use the same unit. Memory is
// in bytes.
struct Costs {
  std::vector<StageCosts> stages;

  // By default messages take no time on links.
  Links links;
  // If true, messages overlap the computations of both ranks. Otherwise they
  // block both ranks: see Simulate.
  bool overlap_communication = true;
  // If `synchronise_optimizer`, all ranks synchronise before the optimizer's
  // step (norm of the gradients, check for overflows), which takes
  // `synchronisation` after the last rank has arrived.
  bool synchronise_optimizer = false;
  double synchronisation = 0;

  // The same costs for all stages.
  static Costs Uniform(int64_t stages, const StageCosts& costs);
};

// InvalidArgument if `costs` does not have `stages` entries, a time is negative
// or not finite, the size of a message or of parameters is negative, or the
// links are invalid (CheckLinks, with as many ranks as stages, the largest
// possible number).
absl::Status CheckCosts(const Costs& costs, int64_t stages);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_COSTS_H_
