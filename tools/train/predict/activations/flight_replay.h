// FlightReplay: what a stage takes and gives back of a micro-batch, pass by
// pass, as LlamaStage and its blocks do.
//
//   FlightReplay flight(shapes, pool);
//   flight.Pass(pipeline::ActionKind::kForward);
//   flight.Pass(pipeline::ActionKind::kBackward);   // holds nothing any more
//
// Every tensor of block_activations.h and output_head.h, in the order of
// transformer_block.cc: what recomputation gives up and makes again as well.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_FLIGHT_REPLAY_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_FLIGHT_REPLAY_H_

#include <cstdint>
#include <vector>

#include "pipeline/schedule/action.h"
#include "tools/train/predict/activations/pool_replay.h"
#include "tools/train/predict/stage_shapes.h"

namespace tessera::train {

class FlightReplay {
 public:
  // Both outlive this.
  FlightReplay(const StageShapes& shapes, PoolReplay& pool)
      : shapes_(shapes),
        pool_(pool),
        layers_(static_cast<size_t>(shapes.layers)) {}

  // A forward, a whole backward, or the backward of inputs and then of weights.
  // After the last of them everything is given back.
  void Pass(pipeline::ActionKind kind);

 private:
  using Slot = PoolReplay::Slot;
  struct Layer {
    Slot input, attention_norm, attention_input, middle, mlp_norm, mlp_input;
    Slot query, key, value, output, log_sum_exp, qkv_gradient;
    Slot gate_up, product;
    Slot output_gradient, mlp_input_gradient, middle_gradient,
        attention_input_gradient;
  };
  struct Head {
    Slot input, norm, normalised, logits, largest, sums, normalised_gradient;
  };

  void Forward();
  void ForwardLayer(Layer& layer);
  void ForwardAttention(Layer& layer);
  void Attend(Layer& layer);
  void ForwardMlp(Layer& layer);
  void ComputeLogits();
  void ForwardHead();
  void BackwardHead(bool with_weights);
  void BackwardLayer(Layer& layer, bool with_weights);
  void BackwardMlp(Layer& layer, bool with_weights);
  void BackwardAttention(Layer& layer);
  void RunBackward(bool with_weights);
  void Release(Layer& layer);
  void ReleaseHead();
  void ReserveRows(Slot& slot) { pool_.Reserve(shapes_.row_bytes(), slot); }
  void ReserveColumns(int64_t columns, Slot& slot) {
    pool_.Reserve(shapes_.Values(shapes_.tokens * columns), slot);
  }

  const StageShapes& shapes_;
  PoolReplay& pool_;
  std::vector<Layer> layers_;
  Head head_;
  Slot hidden_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_FLIGHT_REPLAY_H_
