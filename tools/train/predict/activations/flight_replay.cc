#include "tools/train/predict/activations/flight_replay.h"

namespace tessera::train {

using pipeline::ActionKind;
using tensor_parallel::Recompute;

void FlightReplay::Pass(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return Forward();
    case ActionKind::kBackwardInput:
      return RunBackward(/*with_weights=*/false);
    case ActionKind::kBackward:
      RunBackward(/*with_weights=*/true);
      break;
    default:
      break;
  }
  for (Layer& layer : layers_) Release(layer);
  ReleaseHead();
}

void FlightReplay::Forward() {
  if (shapes_.is_last) ReserveRows(hidden_);
  for (Layer& layer : layers_) ForwardLayer(layer);
  if (shapes_.is_last) ForwardHead();
  pool_.Release(hidden_);
}

void FlightReplay::ForwardLayer(Layer& layer) {
  ReserveRows(layer.input);
  ForwardAttention(layer);
  if (shapes_.recompute != Recompute::kNone) {
    pool_.Release(layer.output);
    pool_.Release(layer.log_sum_exp);
  }
  if (shapes_.recompute == Recompute::kFull) {
    for (Slot* slot :
         {&layer.query, &layer.key, &layer.value, &layer.attention_input}) {
      pool_.Release(*slot);
    }
  }
  ForwardMlp(layer);
  if (shapes_.recompute != Recompute::kFull) return;
  for (Slot* slot : {&layer.attention_norm, &layer.middle, &layer.mlp_norm,
                     &layer.mlp_input, &layer.gate_up, &layer.product}) {
    pool_.Release(*slot);
  }
}

void FlightReplay::ForwardAttention(Layer& layer) {
  ReserveRows(layer.attention_input);
  pool_.Reserve(shapes_.Statistics(shapes_.rows), layer.attention_norm);
  ReserveRows(layer.middle);
  Slot qkv;
  ReserveColumns(shapes_.qkv, qkv);
  ReserveColumns(shapes_.heads * shapes_.head_size, layer.query);
  ReserveColumns(shapes_.kv_heads * shapes_.head_size, layer.key);
  ReserveColumns(shapes_.kv_heads * shapes_.head_size, layer.value);
  pool_.Release(qkv);
  Attend(layer);
}

void FlightReplay::Attend(Layer& layer) {
  ReserveColumns(shapes_.heads * shapes_.head_size, layer.output);
  pool_.Reserve(shapes_.Statistics(shapes_.tokens * shapes_.heads),
                layer.log_sum_exp);
}

void FlightReplay::ForwardMlp(Layer& layer) {
  ReserveRows(layer.mlp_input);
  pool_.Reserve(shapes_.Statistics(shapes_.rows), layer.mlp_norm);
  ReserveColumns(shapes_.gate_up, layer.gate_up);
  ReserveColumns(shapes_.intermediate, layer.product);
}

void FlightReplay::ComputeLogits() {
  ReserveRows(head_.normalised);
  pool_.Reserve(shapes_.Statistics(shapes_.rows), head_.norm);
  ReserveColumns(shapes_.vocabulary, head_.logits);
}

void FlightReplay::ForwardHead() {
  ReserveRows(head_.input);
  ComputeLogits();
  pool_.Reserve(shapes_.Statistics(shapes_.tokens), head_.largest);
  pool_.Reserve(shapes_.Statistics(2 * shapes_.tokens), head_.sums);
  if (shapes_.recompute != Recompute::kFull) return;
  for (Slot* slot : {&head_.norm, &head_.normalised, &head_.logits}) {
    pool_.Release(*slot);
  }
}

void FlightReplay::BackwardHead(bool with_weights) {
  if (!head_.logits.held) ComputeLogits();
  pool_.Release(head_.largest);
  pool_.Release(head_.sums);
  ReserveRows(head_.normalised_gradient);
  if (with_weights) ReleaseHead();
}

void FlightReplay::BackwardLayer(Layer& layer, bool with_weights) {
  if (!layer.middle.held) {
    ForwardAttention(layer);
    ForwardMlp(layer);
  }
  for (Slot* slot : {&layer.output_gradient, &layer.mlp_input_gradient,
                     &layer.middle_gradient, &layer.attention_input_gradient}) {
    ReserveRows(*slot);
  }
  BackwardMlp(layer, with_weights);
  BackwardAttention(layer);
  if (with_weights) Release(layer);
}

void FlightReplay::BackwardMlp(Layer& layer, bool with_weights) {
  Slot product_gradient;
  ReserveColumns(shapes_.intermediate, product_gradient);
  if (with_weights) pool_.Release(layer.product);
  pool_.Release(product_gradient);
  if (with_weights) pool_.Release(layer.gate_up);
}

void FlightReplay::BackwardAttention(Layer& layer) {
  if (!layer.output.held) Attend(layer);
  Slot output_gradient, query, key, value;
  ReserveColumns(shapes_.query, output_gradient);
  ReserveColumns(shapes_.heads * shapes_.head_size, query);
  ReserveColumns(shapes_.kv_heads * shapes_.head_size, key);
  ReserveColumns(shapes_.kv_heads * shapes_.head_size, value);
  for (Slot* slot :
       {&layer.query, &layer.key, &layer.value, &layer.log_sum_exp}) {
    pool_.Release(*slot);
  }
  ReserveColumns(shapes_.qkv, layer.qkv_gradient);
  for (Slot* slot : {&query, &key, &value, &output_gradient}) {
    pool_.Release(*slot);
  }
}

void FlightReplay::RunBackward(bool with_weights) {
  if (shapes_.is_first) ReserveRows(hidden_);
  if (shapes_.is_last) BackwardHead(with_weights);
  for (size_t i = layers_.size(); i-- > 0;) {
    BackwardLayer(layers_[i], with_weights);
  }
  pool_.Release(hidden_);
}

void FlightReplay::Release(Layer& layer) {
  for (Slot* slot :
       {&layer.input, &layer.attention_norm, &layer.attention_input,
        &layer.middle, &layer.mlp_norm, &layer.mlp_input, &layer.query,
        &layer.key, &layer.value, &layer.output, &layer.log_sum_exp,
        &layer.qkv_gradient, &layer.gate_up, &layer.product,
        &layer.output_gradient, &layer.mlp_input_gradient,
        &layer.middle_gradient, &layer.attention_input_gradient}) {
    pool_.Release(*slot);
  }
}

void FlightReplay::ReleaseHead() {
  for (Slot* slot :
       {&head_.input, &head_.norm, &head_.normalised, &head_.logits,
        &head_.largest, &head_.sums, &head_.normalised_gradient}) {
    pool_.Release(*slot);
  }
}

}  // namespace tessera::train
