#include "tools/plan/traffic.h"

#include "collectives/operation/operation.h"
#include "topology/placement/link_profile.h"
#include "topology/placement/traffic.h"

namespace tessera::plan {

namespace {

using collectives::OpKind;
using train::TrafficAxis;

int64_t StrideOf(TrafficAxis axis, const train::MeshSizes& mesh) {
  switch (axis) {
    case TrafficAxis::kCp:
    case TrafficAxis::kDp:  // Including the context ranks.
    case TrafficAxis::kData:
    case TrafficAxis::kEp:
      return mesh.tp;
    case TrafficAxis::kEdp:
      return mesh.tp * mesh.ep;
    case TrafficAxis::kReplicate:
      return mesh.tp * mesh.shard_ranks();
    case TrafficAxis::kPp:
      return mesh.tp * mesh.cp * mesh.dp;
    default:
      return 1;
  }
}

}  // namespace

const topology::LinkProfile& AxisLinks::ProfileOf(const train::MeshSizes& mesh,
                                                  TrafficAxis axis) {
  const int64_t size = train::RanksAlong(axis, mesh);
  const int64_t stride = StrideOf(axis, mesh);
  const auto found = profiles_.find({size, stride});
  if (found != profiles_.end()) return found->second;
  return profiles_[{size, stride}] = topology::MeasureLinks(
             cluster_, ranks_, size, stride, {.exchange = false});
}

double AxisLinks::Seconds(const train::MeshSizes& mesh, TrafficAxis axis,
                          OpKind kind, double bytes, double times) {
  // Ignores the few bytes of the gradient norm, whose ranks have no uniform
  // stride.
  if (axis == TrafficAxis::kModel || axis == TrafficAxis::kExpertModel ||
      train::RanksAlong(axis, mesh) == 1) {
    return 0;
  }
  const topology::LinkProfile& profile = ProfileOf(mesh, axis);
  if (kind == OpKind::kSend) {
    const auto& links = axis == TrafficAxis::kPp ? profile.chain : profile.ring;
    return times * links.Seconds(bytes);
  }
  const auto collective = train::CollectiveKindOf(kind);
  if (!collective) return 0;
  return topology::TransferSeconds({*collective, bytes, times}, profile);
}

double AxisLinks::SecondsOf(const train::MeshSizes& mesh, TrafficAxis axis,
                            OpKind kind, const train::RankTraffic& traffic) {
  const auto found = traffic.all().find({axis, kind});
  if (found == traffic.all().end() || found->second.count == 0) return 0;
  const auto times = static_cast<double>(found->second.count);
  return Seconds(mesh, axis, kind,
                 static_cast<double>(found->second.bytes) / times, times);
}

double AxisLinks::SecondsAlong(const train::MeshSizes& mesh, TrafficAxis axis,
                               const train::RankTraffic& traffic) {
  double seconds = 0;
  for (const auto& [key, of] : traffic.all()) {
    if (key.first == axis) {
      seconds += SecondsOf(mesh, axis, key.second, traffic);
    }
  }
  return seconds;
}

namespace {

using pipeline::ActionKind;
using tensor_parallel::Recompute;
using train::RankTraffic;
using train::StageShapes;

class PassTraffic {
 public:
  PassTraffic(const StageShapes& shapes, int64_t times, RankTraffic& traffic)
      : shapes_(shapes), times_(times), traffic_(traffic) {}

  void Forward() {
    AddForwardLayers();
    if (shapes_.is_first) Sums(1);
    if (!shapes_.is_last) return;
    Gathers(1);
    const int64_t tokens = shapes_.tokens;
    Add(OpKind::kAllReduce, shapes_.Statistics(tokens), 1);
    Add(OpKind::kAllReduce, shapes_.Statistics(2 * tokens), 1);
  }

  void Backward(bool with_weights) {
    AddRecomputation();
    const int64_t layers = shapes_.layers, shared = SharedExperts();
    Sums(layers + shared + (shapes_.is_last ? 1 : 0));
    InputSums(layers);
    // Row-parallel layers gather the gradient of their output, once for both
    // halves of the backward pass. Column-parallel layers gather their input,
    // only for the gradients of weights.
    Gathers(2 * layers + shared + (shapes_.is_first ? 1 : 0));
    if (with_weights) {
      // A shared expert always has separate I and W.
      Gathers(layers + 2 * shared + (shapes_.is_last ? 1 : 0));
      InputGathers(layers, /*with_rope=*/false);
    }
    PassRound(layers, /*backward=*/true);
    Dispatch(/*rows=*/2, /*weights=*/1, /*counts=*/0);
  }

  void BackwardWeight() {
    // Experts keep the gathered rows of their gradients.
    Gathers(3 * shapes_.layers - shapes_.mixture.layers + 2 * SharedExperts() +
            (shapes_.is_last ? 1 : 0));
    InputGathers(shapes_.layers, /*with_rope=*/false);
  }

 private:
  void Add(OpKind kind, int64_t bytes, int64_t count) {
    traffic_.Add(TrafficAxis::kTp, kind, bytes, count * times_);
  }
  // Sums partial results: on every rank, or with sequence parallelism on the
  // rank of each token.
  void Sums(int64_t count) {
    Add(shapes_.sequence_parallel ? OpKind::kReduceScatter : OpKind::kAllReduce,
        shapes_.token_bytes(), count);
  }
  void Gathers(int64_t count) {
    if (!shapes_.sequence_parallel) return;
    Add(OpKind::kAllGather, shapes_.token_bytes(), count);
  }

  // The same for the inputs of attentions.
  void InputSums(int64_t count) {
    const OpKind kind =
        shapes_.sequence_parallel ? OpKind::kReduceScatter : OpKind::kAllReduce;
    AddInputs(kind, count, /*with_rope=*/true);
  }
  void InputGathers(int64_t count, bool with_rope) {
    if (!shapes_.sequence_parallel) return;
    AddInputs(OpKind::kAllGather, count, with_rope);
  }
  void AddInputs(OpKind kind, int64_t count, bool with_rope) {
    const auto add = [&](int64_t width) {
      Add(kind, shapes_.Values(shapes_.tokens * width), count);
    };
    for (const int64_t width : shapes_.inputs) add(width);
    if (with_rope && shapes_.shared_rope > 0) add(shapes_.shared_rope);
  }

  int64_t SharedExperts() const {
    return shapes_.mixture.has_shared ? shapes_.mixture.layers : 0;
  }

  // The all-to-alls of each mixture.
  void Dispatch(int64_t rows, int64_t weights, int64_t counts) {
    const train::MixtureShapes& mixture = shapes_.mixture;
    const auto add = [&](int64_t bytes, int64_t count) {
      if (mixture.ranks == 1 || mixture.layers == 0) return;
      traffic_.Add(TrafficAxis::kEp, OpKind::kAllToAll, bytes,
                   count * mixture.layers * times_);
    };
    add(mixture.per_token * shapes_.token_bytes(), rows);
    add(shapes_.Statistics(mixture.per_token * shapes_.tokens), weights);
    add(mixture.experts * static_cast<int64_t>(sizeof(int64_t)), counts);
  }

  void AddForwardLayers() {
    Sums(2 * shapes_.layers + SharedExperts());
    Gathers(shapes_.layers + SharedExperts());
    InputGathers(shapes_.layers, /*with_rope=*/true);
    PassRound(shapes_.layers, /*backward=*/false);
    Dispatch(/*rows=*/2, /*weights=*/1, /*counts=*/1);
  }

  void AddRecomputation() {
    if (shapes_.recompute == Recompute::kNone) return;
    PassRound(shapes_.layers, /*backward=*/false);
    if (shapes_.recompute != Recompute::kFull) return;
    Sums(shapes_.layers);
    Gathers(shapes_.layers + SharedExperts() + (shapes_.is_last ? 1 : 0));
    InputGathers(shapes_.layers, /*with_rope=*/true);
    Dispatch(/*rows=*/1, /*weights=*/1, /*counts=*/1);
  }

  // Ring attention of each sequence: receives the keys and values of the other
  // ranks one after another.
  void PassRound(int64_t layers, bool backward) {
    if (shapes_.heads == 0) return;
    const auto ranks = static_cast<int64_t>(shapes_.positions.size());
    for (int64_t step = 0; step < ranks; ++step) {
      const int64_t owner = (shapes_.context_rank + ranks - step) % ranks;
      const int64_t next = (owner + ranks - 1) % ranks;
      const int64_t times = layers * shapes_.sequences * times_;
      if (step + 1 < ranks) {
        Exchange(shapes_.Values(Pair(owner)), shapes_.Values(Pair(next)),
                 times);
      }
      if (!backward) continue;
      Exchange(shapes_.Statistics(Pair(owner)), shapes_.Statistics(Pair(next)),
               times);
    }
  }

  int64_t Pair(int64_t owner) const {
    return 2 * shapes_.positions[static_cast<size_t>(owner)] *
           shapes_.kv_heads * shapes_.head_size;
  }

  void Exchange(int64_t sent, int64_t received, int64_t times) {
    traffic_.Add(TrafficAxis::kCp, OpKind::kSend, sent, times);
    traffic_.Add(TrafficAxis::kCp, OpKind::kReceive, received, times);
  }

  const StageShapes& shapes_;
  const int64_t times_;
  RankTraffic& traffic_;
};

}  // namespace

void AddPasses(const StageShapes& shapes, ActionKind kind, int64_t times,
               RankTraffic& traffic) {
  PassTraffic pass(shapes, times, traffic);
  switch (kind) {
    case ActionKind::kForward:
      return pass.Forward();
    case ActionKind::kBackward:
      return pass.Backward(/*with_weights=*/true);
    case ActionKind::kBackwardInput:
      return pass.Backward(/*with_weights=*/false);
    case ActionKind::kBackwardWeight:
      return pass.BackwardWeight();
    default:
      return;
  }
}

}  // namespace tessera::plan
