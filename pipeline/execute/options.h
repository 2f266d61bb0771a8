// ExecutorOptions, and the tied weights that they name (TiedWeights).
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

// Weights that several stages share, such as the embedding of the first stage
// and the head of the last. Each stage holds a copy; their gradients are
// summed.
struct TiedWeights {
  std::string name;             // Passed to Stage::TiedGradient.
  std::vector<int32_t> stages;  // Two or more, distinct.
};

struct ExecutorOptions {
  // The queue on which the rank's stages compute, on any device. Must outlive
  // the executor. Null: HostQueue().
  Queue* queue = nullptr;

  // The output spec of each stage except the last. If empty, the stages are
  // queried (Stage::OutputSpec) before the first step. Must be equal on every
  // rank.
  std::vector<TensorSpec> boundaries = {};

  // Must be equal on every rank.
  std::vector<TiedWeights> tied = {};

  // The timeout of a message or collective, which must be positive; if not
  // given, the communicator's. On a device the timeout of a message starts when
  // its data are computed, or its buffer is free.
  std::optional<absl::Duration> timeout = {};

  // Messages of at least this size are asynchronous: receives are posted ahead,
  // sends do not block, and the communicator's thread moves them while this one
  // computes. Smaller ones are sent and received in place, which costs less
  // than another thread; most engines buffer them. On a device all messages are
  // asynchronous.
  int64_t start_from_bytes = 32 << 10;

  // The number of receives from each rank that are posted ahead; 0: none.
  int64_t receives_ahead = 1;

  // The number of asynchronous sends in flight to each rank, at least 1. One
  // more send waits for the oldest to complete. On a device it does not wait;
  // instead the buffer of the oldest goes back to the pool, and the work that
  // reuses it waits for that send.
  int64_t sends_in_flight = 2;

  // Records the begin and end of every action. Costs a barrier per step, at
  // which the ranks set their clocks to 0. Must be equal on every rank.
  bool trace = true;

  // Captures the computations of all micro-batches of a training step in a
  // graph and replays it in later steps, so that the host enqueues one
  // operation for them (Queue::BeginCapture). The first step runs without a
  // capture and allocates memory; the second is captured. Gathers of parameters
  // move to the begin of the step and reductions to its end. Requires a
  // pipeline of one rank, a queue that supports capture, and stages whose
  // passes enqueue the same work in every step (Stage::LoadInputs).
  bool captures = false;

  // Interleaves the two computations of a pair (Action::with_next): a stage
  // that is about to wait for a message calls Yield. Must outlive the executor.
  // Null: the second computation follows the first.
  Interleaver* interleaver = nullptr;

  // The memory of the tensors between stages. Null: tensors within a rank use
  // the memory of the queue's device, and tensors between ranks the engine's
  // own memory (Communicator::AllocateShared).
  std::shared_ptr<MemoryResource> memory = {};
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_OPTIONS_H_
