// RunOptions: a training run, as all of its ranks know it.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RUN_OPTIONS_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RUN_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "offload/tier/memory_tier.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tools/model_files/model_config.h"
#include "tools/train/loop/learning_rate.h"
#include "topology/config/parallel_config.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {

using topology::MeshSizes;

enum class ReduceChoice {
  kAuto,            // What is simulated to be faster, else what holds less.
  kEachMicroBatch,  // Least memory.
  kLastMicroBatch,  // Least traffic; holds whole gradients for a step.
};

struct RunOptions {
  MeshSizes mesh = {};
  model_files::ModelConfig model = {};
  DType dtype = DType::kF32;

  // Of a step, over all ranks, and of a micro-batch.
  int64_t batch = 8;
  int64_t micro_batch = 1;
  int64_t length = 128;
  int64_t steps = 1;
  uint64_t seed = 1;
  LearningRate learning_rate = {};

  // A generator's name, "auto", or "file" for that of `schedule_table`.
  std::string schedule = "1f1b";
  std::string schedule_table = "";  // As pipeline/schedule/csv.h reads it.
  int64_t chunks = 1;               // Stages of a pipeline rank.
  bool sequence_parallel = false;
  bool zigzag = true;  // Layout of sequences over context ranks.
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;

  // Stage 3: how many computations ahead a layer's weights are gathered; and
  // the most bytes that gathered weights may take, 0: any number. With a limit
  // the distance is chosen.
  int64_t gather_ahead = 1;
  int64_t max_gathered_bytes = 0;
  // Stages 2 and 3: when a layer's gradients are reduced.
  ReduceChoice reduce = ReduceChoice::kAuto;

  // Who gives out the memory of activations and layers, and of tensors between
  // stages, on this rank. Null: the host, and where messages go to another rank
  // the engine. What the state takes: state.memory.
  std::shared_ptr<MemoryResource> memory = nullptr;

  // Where what layers keep of a micro-batch lies between its forward and its
  // backward (model/activation_store.h). Not owned. Null: in memory.
  offload::MemoryTier* activation_tier = nullptr;

  // Its learning rate, key prefix and what counts in the norm are set by the
  // run.
  zero3::ShardedStateOptions state = {};
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RUN_OPTIONS_H_
