// An estimate of what each axis carries when a transformer is trained.
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
// Attention", arXiv 2310.01889 (keys and values go round once forward; they and
// their gradients backward). ep: Lepikhin et al., "GShard", arXiv 2006.16668
// (dispatch and combine, forward and backward). pp: Narayanan et al., arXiv
// 2104.04473, section 4.1 (activations forward, gradients back, scattered over
// tp). dp: Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 7.
//
// Gradients are in truth reduced over dp and cp together, and dense ones over
// ep as well; all of it is counted along dp. Overlap with computation is not
// subtracted.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_TRANSFORMER_TRAFFIC_H_
#define TESSERA_TOPOLOGY_PLACEMENT_TRANSFORMER_TRAFFIC_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/axis.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {

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
  int64_t activation_bytes = 2;   // Of one element.
  int64_t weight_bytes = 2;
  int64_t gradient_bytes = 2;
  int64_t zero_stage = 0;  // 0 to 3
};

// Traffic for each of `axes`, in their order. InvalidArgument as ValidateAxes;
// where an axis is none of tp, cp, ep, pp, dp; and where a size is below 1, the
// parameters below 0 or the stage not 0 to 3; the message lists all that is
// wrong.
absl::StatusOr<std::vector<AxisTraffic>> EstimateTransformerTraffic(
    std::span<const Axis> axes, const TransformerShape& shape);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_TRANSFORMER_TRAFFIC_H_
