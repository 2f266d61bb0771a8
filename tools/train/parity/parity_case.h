// ParityCase: a way to train one small model; which way must not matter.
//
//   ParityCase run = {.mesh = {.dp = 2, .tp = 4}, .stage = 3};
//   TESSERA_ASSIGN_OR_RETURN(auto records, TrainCase(run));   // train_case.h
//
// The model is made of sizes that nothing divides: 257 words, 8 sequences of 13
// tokens a step, 3 layers, 6 heads of 4 in 20 numbers, 27 of the MLP.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_PARITY_CASE_H_
#define TESSERA_TOOLS_TRAIN_PARITY_PARITY_CASE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "base/dtype/dtype.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tools/train/loop/run_options.h"
#include "zero3/layout/layout_options.h"

namespace tessera::train {

struct ParityCase {
  MeshSizes mesh = {};
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  int64_t micro_batch = 1;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  bool sequence_parallel = false;
  bool zigzag = true;

  int stage = 0;  // Of ZeRO.
  zero3::LayoutKind layout = zero3::LayoutKind::kChunks;
  int64_t bucket_bytes = 25'000'000;
  int64_t persistence_threshold = 0;
  int64_t gather_ahead = 1;
  int64_t max_gathered_bytes = 0;
  std::string reduce = "auto";  // auto, each, last
  int64_t hpz_partition_size = 0;
  // none, optimizer, gradients, params, all (of the state), activations
  std::string offload = "none";
  std::string tier = "none";  // none, host, file
  bool lossless = false;

  // What the losses do depend on.
  bool quantized_weights = false;
  bool quantized_gradients = false;
  bool tied = false;
  bool clip = false;
  int64_t kv_heads = 2;
  std::string moments = "f32";  // f32, bf16, int8
  int64_t length = 13;
  int64_t layers = 3;
  DType dtype = DType::kF32;
  int64_t steps = 20;
};

// The same model, trained in the plainest way on one rank.
ParityCase PlainCase(const ParityCase& run);

// How much further than with moments of f32 the losses of two ways to train may
// lie apart: where moments are rounded, what the order of sums changes in the
// last bit can send an element next to a boundary the other way.
double RoundingFactor(const ParityCase& run);

// Without tiers.
RunOptions RunOptionsOf(const ParityCase& run);

// "dp2,tp4 schedule=1f1b/1 micro_batch=1 ..."
std::ostream& operator<<(std::ostream& os, const ParityCase& run);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_PARITY_CASE_H_
