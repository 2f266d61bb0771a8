// The messages of a rank in a step, by mesh axis and operation.
//
//   RankTraffic traffic(mesh);
//   traffic.Add(TrafficAxis::kTp, collectives::OpKind::kAllReduce,
//               {.count = 12, .bytes = 12 * 4096, .largest = 4096});
//   traffic.SentAlong(TrafficAxis::kTp);
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

#include "collectives/counting/counting_engine.h"
#include "collectives/operation/operation.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/settings/run_options.h"
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

struct OperationTraffic {
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t largest = 0;  // Bytes of the largest message.
  // The minimum of bytes that the rank has to send (BusFactor of collectives);
  // 0 for a receive.
  double sent = 0;
};

class RankTraffic {
 public:
  explicit RankTraffic(const MeshSizes& mesh) : mesh_(mesh) {}

  // Ignores an axis of one rank.
  void Add(TrafficAxis axis, collectives::OpKind kind,
           const collectives::OperationCount& count);
  // Adds `times` messages of `bytes` each.
  void Add(TrafficAxis axis, collectives::OpKind kind, int64_t bytes,
           int64_t times) {
    Add(axis, kind, {.count = times, .bytes = bytes * times, .largest = bytes});
  }

  using Key = std::pair<TrafficAxis, collectives::OpKind>;
  const std::map<Key, OperationTraffic>& all() const { return all_; }
  double SentAlong(TrafficAxis axis) const;

 private:
  MeshSizes mesh_;
  std::map<Key, OperationTraffic> all_;
};

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
