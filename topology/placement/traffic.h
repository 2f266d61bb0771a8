// AxisTraffic: the transfers between the ranks along one axis in a step, and
// their estimate for transformers.
//
//   AxisTraffic tp{.axis = {"tp", AxisSize(8)},
//                  .transfers = {{CollectiveKind::kAllReduce, 64e6, 128}}};
#ifndef TESSERA_TOPOLOGY_PLACEMENT_TRAFFIC_H_
#define TESSERA_TOPOLOGY_PLACEMENT_TRAFFIC_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/mesh.h"

namespace tessera::topology {

enum class CollectiveKind {
  kAllReduce,      // bytes: the buffer of each rank.
  kAllGather,      // bytes: the gathered result.
  kReduceScatter,  // bytes: the input of each rank.
  kAllToAll,       // bytes: the input of each rank, equal parts for all.
  kSendRecv,  // bytes: each rank's message to the next; none from the last.
};

inline constexpr int kCollectiveKinds = 5;

// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv".
std::string_view CollectiveKindName(CollectiveKind kind);

inline std::ostream& operator<<(std::ostream& os, CollectiveKind kind) {
  return os << CollectiveKindName(kind);
}

struct Transfer {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  double bytes = 0;  // Defined by the kind. Finite, at least 0.
  double times = 1;  // Repetitions in a step. Finite, at least 0.

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct AxisTraffic {
  Axis axis;
  std::vector<Transfer> transfers;

  friend bool operator==(const AxisTraffic&, const AxisTraffic&) = default;
};

// The axes alone, in the same order.
std::vector<Axis> AxesOf(std::span<const AxisTraffic> traffic);

// InvalidArgument as ValidateAxes, and if a transfer has bytes or times that
// are negative or not finite; the message names the axis and the value.
absl::Status ValidateTraffic(std::span<const AxisTraffic> traffic);

// A transformer and its training, from which EstimateTransformerTraffic
// estimates the traffic of each axis.
//
//   TransformerShape shape;
//   shape.layers = 80;
//   shape.hidden = 8192;
//   ...
//   TESSERA_ASSIGN_OR_RETURN(auto traffic,
//                            EstimateTransformerTraffic(axes, shape));
//
// Per rank and step, with t, c, p, d, e the sizes of tp, cp, pp, dp, ep; L
// layers, hidden size h, sequence S, micro-batch b, M micro-batches, a bytes
// per activation and g per gradient element, top-k k, K width of keys (or
// values), l = L/p layers of a stage, x = b * S/c * h * a bytes of its
// activations, P the dense and E the expert parameters, and w bytes per weight:
//
//   axis  transfer        bytes                          times
//   tp    all_reduce      x                              4 l M
//   cp    all_gather      2 b S K a / t                  3 l M
//   ep    all_to_all      x k / t                        4 l M
//   pp    send_recv       x / t                          2 M
//   dp    all_reduce      (P + E/e) / (t p) * g          1      (ZeRO 0 to 2)
//   dp    all_gather      (P + E/e) / (t p) * w          2      (ZeRO 3)
//   dp    reduce_scatter  (P + E/e) / (t p) * g          1      (ZeRO 3)
//
// Sources. tp: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3 (two
// all-reduces in the forward pass of a layer and two in the backward one; with
// sequence parallelism each becomes an all-gather and a reduce-scatter of the
// same cost, Korthikanti et al., arXiv 2205.05198). cp: Liu et al., "Ring
// Attention", arXiv 2310.01889 (keys and values circulate once in the forward
// pass; they and their gradients in the backward pass). ep: Lepikhin et al.,
// "GShard", arXiv 2006.16668 (dispatch and combine, forward and backward). pp:
// Narayanan et al., arXiv 2104.04473, section 4.1 (activations forward,
// gradients back, scattered over tp). dp: Rajbhandari et al., "ZeRO", arXiv
// 1910.02054, section 7.
//
// Gradients are reduced over dp and cp together, and dense ones over ep as
// well; all of this counts along dp. Overlap with computation is not
// subtracted.
struct TransformerShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t kv_hidden = 0;  // Width of keys: KV heads * head size.
  int64_t sequence = 0;
  int64_t micro_batch = 1;    // Sequences of a micro-batch.
  int64_t micro_batches = 1;  // In a step.
  double dense_parameters = 0;
  double expert_parameters = 0;   // All experts of all layers together.
  int64_t experts_per_token = 1;  // top-k
  int64_t activation_bytes = 2;   // Size of one element.
  int64_t weight_bytes = 2;
  int64_t gradient_bytes = 2;
  int64_t zero_stage = 0;  // 0 to 3
};

// Traffic for each of `axes`, in their order. InvalidArgument as ValidateAxes;
// if an axis is none of tp, cp, ep, pp, dp; and if a size is below 1,
// parameters are below 0 or the stage is not 0 to 3. The message lists all
// errors.
absl::StatusOr<std::vector<AxisTraffic>> EstimateTransformerTraffic(
    std::span<const Axis> axes, const TransformerShape& shape);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_TRAFFIC_H_
