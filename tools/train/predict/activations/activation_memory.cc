#include "tools/train/predict/activations/activation_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "pipeline/schedule/action.h"
#include "tools/train/predict/activations/boundary_replay.h"
#include "tools/train/predict/activations/flight_replay.h"
#include "tools/train/predict/activations/pool_replay.h"
#include "tools/train/predict/stage_shapes.h"

namespace tessera::train {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using tensor_parallel::Recompute;

// What a pass does to a stage's pool, from whatever is held before.
struct PassEffect {
  struct Change {
    int64_t more = 0;
    int64_t most = 0;  // While it goes on.
  };
  Change bytes;
  std::map<int64_t, Change> blocks;  // By size.
};

PassEffect EffectOf(ActionKind kind, FlightReplay& flight, PoolReplay& pool) {
  pool.ResetPeaks();
  const int64_t before = pool.taken();
  const std::map<int64_t, PoolReplay::Blocks> blocks = pool.blocks();
  flight.Pass(kind);
  PassEffect effect;
  effect.bytes = {pool.taken() - before, pool.peak() - before};
  for (const auto& [size, after] : pool.blocks()) {
    const auto found = blocks.find(size);
    const int64_t had = found == blocks.end() ? 0 : found->second.now;
    effect.blocks[size] = {after.now - had, after.most - had};
  }
  return effect;
}

// A stage's pool over a step.
class StagePool {
 public:
  explicit StagePool(const StageShapes& shapes) {
    const auto measure = [&](std::initializer_list<ActionKind> passes) {
      PoolReplay pool;
      FlightReplay flight(shapes, pool);
      for (const ActionKind kind : passes) {
        effects_[kind] = EffectOf(kind, flight, pool);
      }
    };
    measure({ActionKind::kForward, ActionKind::kBackward});
    measure({ActionKind::kForward, ActionKind::kBackwardInput,
             ActionKind::kBackwardWeight});
  }

  // The most that is taken while the pass goes on.
  int64_t Do(ActionKind kind) {
    const PassEffect& effect = effects_.at(kind);
    const int64_t most = Apply(effect.bytes, bytes_);
    for (const auto& [size, change] : effect.blocks) {
      Apply(change, blocks_[size]);
    }
    flights_ += kind == ActionKind::kForward ? 1 : 0;
    most_flights_ = std::max(most_flights_, flights_);
    flights_ -= pipeline::GivesWeightGradient(kind) ? 1 : 0;
    return most;
  }

  int64_t taken() const { return bytes_.now; }
  int64_t peak() const { return bytes_.most; }
  int64_t most_flights() const { return most_flights_; }
  // Of the blocks that were ever made.
  int64_t made() const {
    int64_t sum = 0;
    for (const auto& [size, blocks] : blocks_) sum += size * blocks.most;
    return sum;
  }

 private:
  static int64_t Apply(const PassEffect::Change& change,
                       PoolReplay::Blocks& of) {
    const int64_t most = of.now + change.most;
    of.most = std::max(of.most, most);
    of.now += change.more;
    return most;
  }

  std::map<ActionKind, PassEffect> effects_;
  PoolReplay::Blocks bytes_;
  std::map<int64_t, PoolReplay::Blocks> blocks_;
  int64_t flights_ = 0;
  int64_t most_flights_ = 0;
};

// One sequence of a layer's ring attention: keys and values that go round,
// their gradients and the rank's share of these, and what adds up.
int64_t RingBytes(const StageShapes& shapes) {
  if (shapes.heads == 0) return 0;
  const int64_t longest =
      *std::max_element(shapes.positions.begin(), shapes.positions.end());
  const auto own = shapes.positions[static_cast<size_t>(shapes.context_rank)];
  const int64_t pair = 2 * longest * shapes.kv_heads * shapes.head_size;
  const int64_t output = own * shapes.heads * shapes.head_size;
  const int64_t pairs = shapes.positions.size() > 1 ? 2 : 1;
  const int64_t wide = shapes.statistics == shapes.dtype ? 1 : 2;
  return shapes.Values(pairs * pair) + shapes.Statistics(3 * pair) +
         shapes.Statistics(wide * output) +
         shapes.Statistics(own * shapes.heads);
}

int64_t LayerBytes(const StageShapes& shapes) {
  int64_t bytes = shapes.layers * RingBytes(shapes);
  if (!shapes.sequence_parallel) return bytes;
  // All tokens: of two column-parallel layers their input and its gradient, of
  // two row-parallel ones their output.
  const int64_t gathered =
      6 * shapes.layers + (shapes.is_first ? 1 : 0) + (shapes.is_last ? 2 : 0);
  return bytes + gathered * shapes.token_bytes();
}

}  // namespace

absl::StatusOr<ActivationMemory> PredictActivations(const RunPlan& plan,
                                                    const RankPlace& place) {
  ActivationMemory memory;
  std::map<int32_t, StagePool> pools;
  int64_t boundary_bytes = 0;
  for (const StageSpan& span : plan.StagesOf(place.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
                             StageShapes::Of(plan.options(), place, span));
    pools.emplace(span.stage, StagePool(shapes));
    memory.layers += LayerBytes(shapes);
    boundary_bytes = shapes.row_bytes();
  }
  const auto rank = static_cast<int32_t>(place.pp);
  int64_t taken = 0;
  for (const Action& action :
       plan.schedule().ranks[static_cast<size_t>(rank)]) {
    if (!pipeline::Computes(action.kind)) continue;
    StagePool& pool = pools.at(action.stage);
    const int64_t others = taken - pool.taken();
    memory.peak = std::max(memory.peak, others + pool.Do(action.kind));
    taken = others + pool.taken();
  }
  for (const auto& [stage, pool] : pools) {
    memory.stage_peaks.push_back(pool.peak());
    memory.pools += pool.made();
    memory.micro_batches = std::max(memory.micro_batches, pool.most_flights());
  }
  memory.boundaries =
      BoundaryReplay(plan.lowered(), rank, boundary_bytes).peak();
  return memory;
}

}  // namespace tessera::train
