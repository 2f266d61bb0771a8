// The messages of a rank, by mesh axis and operation: predicted by a dry run or
// measured in a run.
//
//   const RankTraffic before = TrafficOf(rank);
//   rank.Step();
//   const RankTraffic step = TrafficOf(rank).Since(before);
//   step.SentAlong(TrafficAxis::kTp);
//
// Bytes are counted as in Communicator::Statistics: the whole message of a
// reduction or gather. Groups of one rank send nothing.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_RANK_TRAFFIC_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_RANK_TRAFFIC_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "collectives/operation/operation.h"
#include "collectives/record/flight_recorder.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/step/train_rank.h"
#include "topology/config/strategies.h"
#include "topology/placement/traffic.h"

namespace tessera::train {

enum class TrafficAxis {
  kTp,
  kCp,
  kPp,
  kDp,         // Data and context ranks, over which the state is sharded.
  kReplicate,  // Data ranks with the same shards (hybrid sharding).
  kData,       // kDp and kReplicate, if there are replicas: for the loss.
  kModel,      // Tensor and pipeline ranks: for the gradient norm.
  // With expert parallelism: the ranks that divide a layer's experts; the ranks
  // that hold the same experts and shard their state; and tensor, pipeline and
  // expert ranks, for the gradient norm.
  kEp,
  kEdp,
  kExpertModel,
};

inline constexpr std::array kTrafficAxes = {
    TrafficAxis::kTp,         TrafficAxis::kCp,        TrafficAxis::kPp,
    TrafficAxis::kDp,         TrafficAxis::kReplicate, TrafficAxis::kData,
    TrafficAxis::kModel,      TrafficAxis::kEp,        TrafficAxis::kEdp,
    TrafficAxis::kExpertModel};

// The name of an axis: "tp", "cp", "pp", "dp", "dp_replicate", "data", "tp,pp",
// "ep", "edp" or "tp,pp,ep".
std::string_view TrafficAxisName(TrafficAxis axis);
// The size of the group along the axis, and a rank's index in it.
int64_t RanksAlong(TrafficAxis axis, const MeshSizes& mesh);
int64_t RankAlong(TrafficAxis axis, const MeshSizes& mesh,
                  const RankPlace& place);

// The collective with which topology's cost model prices an operation. Returns
// nullopt for operations without a formula and for receives.
std::optional<topology::CollectiveKind> CollectiveKindOf(
    collectives::OpKind kind);

class RankTraffic {
 public:
  explicit RankTraffic(const MeshSizes& mesh) : mesh_(mesh) {}

  // Ignores an axis of one rank, and totals without operations.
  void Add(TrafficAxis axis, collectives::OpKind kind,
           const collectives::OperationTotals& totals);
  // Adds `times` messages of `bytes` each, whose time is unknown.
  void Add(TrafficAxis axis, collectives::OpKind kind, int64_t bytes,
           int64_t times);
  void Add(const RankTraffic& other);
  // The operations after `before`, earlier traffic of the same rank.
  RankTraffic Since(const RankTraffic& before) const;

  const MeshSizes& mesh() const { return mesh_; }
  using Key = std::pair<TrafficAxis, collectives::OpKind>;
  const std::map<Key, collectives::OperationTotals>& all() const {
    return all_;
  }
  // The minimum of bytes that the rank has to send (BusFactor of collectives).
  int64_t SentAlong(TrafficAxis axis) const;
  int64_t Sent() const;  // Along all axes.

 private:
  MeshSizes mesh_;
  std::map<Key, collectives::OperationTotals> all_;
};

// Part of SentAlong: 0 for receives.
int64_t SentBy(collectives::OpKind kind,
               const collectives::OperationTotals& totals);

// The traffic of a rank since its creation, in its groups along mesh axes and
// in the groups split from these. Any thread may call it.
RankTraffic TrafficOf(const TrainRank& rank);

struct SharingOptions {
  bool crowded = false;  // There are more ranks than processors.
  topology::CommunicationStrategy strategy =
      topology::CommunicationStrategy::kAdaptive;
};

// The bytes of shared memory that a rank's messages need with the engine
// shared_memory, computed by collectives/shared_memory/window_memory.h for the
// groups of TrainRank and ShardedState.
int64_t SharedWindows(const MeshSizes& mesh, const RankPlace& place,
                      const RankTraffic& traffic,
                      const SharingOptions& options);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_RANK_TRAFFIC_H_
