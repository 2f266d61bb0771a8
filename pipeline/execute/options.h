// The options of an Executor.
#ifndef TESSERA_PIPELINE_EXECUTE_OPTIONS_H_
#define TESSERA_PIPELINE_EXECUTE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "pipeline/execute/interleaver.h"
#include "pipeline/execute/stage.h"

namespace tessera::pipeline {

// Weights that several stages have in common, as the embedding of the first and
// the head of the last: each holds a copy, and their gradients are added up.
struct TiedWeights {
  std::string name;             // What Stage::TiedGradient is asked for.
  std::vector<int32_t> stages;  // Two or more, distinct.
};

struct ExecutorOptions {
  // The queue on which the rank's stages compute, on any device. Outlives the
  // executor. Null: HostQueue().
  Queue* queue = nullptr;

  // The output of each stage but the last. Empty: the stages are asked
  // (Stage::OutputSpec), before the first step. The same on every rank.
  std::vector<TensorSpec> boundaries = {};

  // The same on every rank.
  std::vector<TiedWeights> tied = {};

  // How long a message or collective may take, unless it is the
  // communicator's. More than 0. On a device the time of a message begins when
  // its data are computed, or its buffer is free.
  std::optional<absl::Duration> timeout = {};

  // Messages of at least this size are asynchronous: receives are posted ahead,
  // sends do not block, and the communicator's thread moves them while this one
  // computes. Smaller ones are sent and received in place, which costs less
  // than another thread; most engines buffer them. On a device all messages are
  // asynchronous.
  int64_t start_from_bytes = 32 << 10;

  // How many receives from each rank are posted ahead; 0: none.
  int64_t receives_ahead = 1;

  // The number of asynchronous sends in flight to each rank, at least 1. A
  // further send waits for the oldest. On a device the further send does not
  // wait, but the buffer of the oldest may be used again, by work that waits.
  int64_t sends_in_flight = 2;

  // Records when everything began and ended. Costs a barrier a step, by which
  // the ranks' clocks are set. The same on every rank.
  bool trace = true;

  // Captures the computations of all micro-batches of a training step in a
  // graph and replays it in later steps, so that the host enqueues one
  // operation for them (Queue::BeginCapture). The first step is done as usual,
  // and allocates; the second is captured. Gathers of parameters move to the
  // begin of the step and reductions to its end. Needs a pipeline of one rank,
  // a queue that captures, and stages whose passes enqueue the same work in
  // every step (Stage::LoadInputs).
  bool captures = false;

  // The two computations of a pair of the schedule (Action::with_next) take
  // turns: a stage that waits for a message calls Yield. Outlives the executor.
  // Null: one follows the other.
  Interleaver* interleaver = nullptr;

  // The memory of the tensors between stages. Null: that of the queue's device;
  // tensors between ranks are in the engine's own memory
  // (Communicator::AllocateShared).
  std::shared_ptr<MemoryResource> memory = {};
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_OPTIONS_H_
