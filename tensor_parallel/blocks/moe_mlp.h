// MoeMlp: a mixture of experts as the feed-forward half of a block (Shazeer et
// al., arXiv 1701.06538; Jiang et al., Mixtral of Experts, arXiv 2401.04088).
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_MOE_MLP_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_MOE_MLP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/staging.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/gated_mlp.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct MoeOptions {
  int64_t width = 0;
  int64_t experts = 0;  // Over all ranks; a multiple of the expert ranks.
  int64_t hidden = 0;   // Hidden units per expert.
  GluKind glu = GluKind::kSwiGlu;
  RouterOptions router = {};
  bool router_bias = false;  // Balance by a bias, without gradients.
  bool biases = false;  // Of the router's logits and the experts' products.
  int64_t shared_hidden = 0;  // Of the shared expert; 0: none.
  double balance = 0;         // Coefficient of the balance term.
  double z_loss = 0;          // Coefficient of the router's z-loss.
  double capacity = 0;        // 0: no tokens are dropped.
  // With a capacity, gives every expert as many rows as it may accept. The host
  // then never waits for the device to learn their number.
  bool padded = false;
  DType dtype = DType::kF32;
  LoraOptions lora = {};  // For the projections of all experts.
};

// The ranks that share a mixture of experts.
struct MoeGroups {
  TensorGroup tensor;   // Share the tokens; divide the hidden units.
  TensorGroup experts;  // Divide the tokens and the experts.
  TensorGroup context;  // Divide the tokens of the same sequences.
};

// The routing of rows from a rank's tokens to experts, and from other ranks to
// its own experts. A row is a token for one of the token's experts.
struct DispatchPlan {
  int64_t sent = 0;                        // Rows of this rank's tokens.
  std::vector<int64_t> send_rows = {};     // By rank of the expert group.
  std::vector<int64_t> receive_rows = {};  // By rank of the expert group.
  // The number of rows of each of this rank's experts.
  std::vector<int64_t> expert_rows = {};
  // For each row in the order of experts, its index among the received rows,
  // which are in the order of ranks; empty if both orders are the same.
  std::vector<int64_t> places = {};

  int64_t received() const;
};

// The activations of a micro-batch that are kept from forward to backward.
struct MoeActivations : TensorParts<MoeActivations> {
  explicit MoeActivations(TensorPool& pool)
      : logits(pool),
        experts(pool),
        loads(pool),
        slots(pool),
        tokens(pool),
        places(pool),
        returns(pool),
        weights(pool),
        input(pool),
        gate_up(pool),
        product(pool),
        output_gradient(pool),
        logits_gradient(pool),
        shared(pool) {}

  auto parts() {
    return std::tie(logits, experts, loads, slots, tokens, places, returns,
                    weights, input, gate_up, product, output_gradient,
                    logits_gradient, shared);
  }
  void Clear() {
    TensorParts::Clear();
    plan = {};
    counted = {};
  }
  bool held() const { return product.held(); }

  PooledTensor logits;   // [tokens, experts], statistics.
  PooledTensor experts;  // i64 [tokens, per_token].
  // i64, of op::GroupByExpert: [sequences, experts], and [sent] and more.
  PooledTensor loads, slots, tokens;
  // i64 [received]: DispatchPlan::places, and their inverse.
  PooledTensor places, returns;
  // The rows of this rank's experts, in the order of experts:
  PooledTensor weights;          // [received], statistics.
  PooledTensor input;            // [received, width]
  PooledTensor gate_up;          // [received, gate and up]; then its gradient.
  PooledTensor product;          // [received, hidden units]
  PooledTensor output_gradient;  // [received, width], from BackwardInput.
  PooledTensor logits_gradient;  // [tokens, experts], from BackwardInput.
  GatedMlpActivations shared;
  DispatchPlan plan;
  Download counted;  // `loads` on the host.
  // For the balance terms, set by the caller before the backward: the factor of
  // the mean loss to which the gradient of y belongs, and the number of tokens
  // in that mean, over all context ranks (0: the tokens of the forward).
  double loss_scale = 1;
  int64_t loss_tokens = 0;
};

// A router chooses some of many gated MLPs for each token,
//
//   y[t] = sum over i of weights[t][i] * expert[experts[t][i]](x[t])
//          (+ shared(x[t]))
//
// over the ranks of an expert group, each of which has some of the experts, and
// of a tensor group, each of which has some hidden units of every expert.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto moe, MoeMlp::Create({.tensor = tensor, .experts = experts,
//                                 .context = context},
//                                {.width = 512, .experts = 64, .hidden = 256,
//                                 .router = {.per_token = 4}}));
//   MoeActivations activations(pool);                 // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(
//       moe.Forward(tokens, sequences, x, y, activations));
//   TESSERA_RETURN_IF_ERROR(moe.BackwardInput(tokens, dy, dx, activations));
//   TESSERA_RETURN_IF_ERROR(moe.BackwardWeight(tokens, dy, x, activations));
//   TESSERA_RETURN_IF_ERROR(moe.FinishGradients());   // once a step
//
// x, y and their gradients have the shapes of GatedMlp's. Calls are collectives
// of the groups. One all-to-all dispatches tokens to the ranks of their
// experts, another returns the results. The host downloads the number of tokens
// of each expert to compute the counts of the all-to-alls, for which it waits
// for the device once per forward unless rows are padded. With T tokens on a
// rank, k experts per token, E ranks in the expert group and rows of w bytes:
//
//   pass             all-to-alls                    bytes that a rank sends
//   forward          counts, rows and weights, rows 2 k T w (E - 1) / E
//   backward         rows, rows and weights         2 k T w (E - 1) / E
//
// While rows are in flight the rank may do other work
// (TensorGroup::WithMeanwhile of the expert group), as in the overlapped pairs
// of DualPipe (arXiv 2412.19437, section 3.2.1).
//
// No tokens are dropped unless a capacity is given (GShard, arXiv 2006.16668,
// section 2.2). An expert then accepts only the first tokens of a rank and
// micro-batch, up to `capacity` times the mean number per expert; for the other
// tokens its output counts as 0. Which tokens are dropped depends on the
// partition of the tokens.
//
// Gradients include two terms that balance tokens over experts, in addition to
// the gradient of y. The first is, for each sequence of L tokens, `balance`
// times
//   sum over experts of f[e] P[e],
//   f[e] = experts / (k L) * tokens of the expert,  P[e] = mean of p[t][e]
// with p the router's scores divided by their sum (DeepSeek-V3, arXiv
// 2412.19437, equations 17 to 20). The second is `z_loss` times the mean over
// tokens of the squared logarithm of the router's sum of exponentials (ST-MoE,
// arXiv 2202.08906, equation 5). Both are independent of the mesh.
// Alternatively a bias may be added to the scores that select experts; it has
// no gradient, and the caller updates it from the loads (equation 16 of
// DeepSeek-V3).
//
// Weights, with E experts of h hidden units:
//
//   router.weight           [E, width]      the same on all ranks
//   router.bias             [E]             of statistics, not trained
//   router.logit_bias       [E]             the same on all ranks; `biases`
//   experts.gate_up.weight  [2 E h, width]  of each expert: gate, then up
//   experts.gate_up.bias    [2 E h]         `biases`
//   experts.down.weight     [E width, h]
//   experts.down.bias       [E width]       whole on every rank; `biases`
//   shared.*                those of a GatedMlp
//
// With LoRA, each expert's gate_up and down have an adapter of rank r, with one
// factor a for gate and up together:
//
//   experts.gate_up.lora_a  [E r, width]
//   experts.gate_up.lora_b  [2 E h, r]
//   experts.down.lora_a     [E r, h]
//   experts.down.lora_b     [E width, r]
//
// A rank holds the rows of its experts, and of these the units of its tensor
// rank.
class MoeMlp {
 public:
  // A collective of the groups. InvalidArgument if a size is negative, the
  // number of experts is not a multiple of the expert ranks, or
  // router.per_token exceeds it.
  static absl::StatusOr<MoeMlp> Create(const MoeGroups& groups,
                                       const MoeOptions& options);

  const MoeOptions& options() const { return options_; }
  // Appends "prefix.router.weight" and so on. The pointers are valid until the
  // layer is moved.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);
  // Null without router_bias.
  Parameter* router_bias() { return bias_ ? &*bias_ : nullptr; }

  // The micro-batch has `sequences` sequences with the same number of tokens.
  // FailedPrecondition, here and below, if required weights or gradients are
  // released, or required activations are missing.
  absl::Status Forward(const Partition& tokens, int64_t sequences,
                       ConstTensorView x, TensorView y,
                       MoeActivations& activations);
  // Computes only the activations.
  absl::Status ForwardActivations(const Partition& tokens, int64_t sequences,
                                  ConstTensorView x,
                                  MoeActivations& activations);
  absl::Status BackwardInput(const Partition& tokens,
                             ConstTensorView y_gradient, TensorView x_gradient,
                             MoeActivations& activations);
  absl::Status BackwardWeight(const Partition& tokens,
                              ConstTensorView y_gradient, ConstTensorView x,
                              MoeActivations& activations);
  absl::Status Backward(const Partition& tokens, ConstTensorView y_gradient,
                        ConstTensorView x, TensorView x_gradient,
                        MoeActivations& activations);

  // Call it after the last backward of a step: sums the gradients of the router
  // and of the adapters over the tensor group.
  absl::Status FinishGradients();

  // The number of this rank's tokens that chose each expert since the last
  // ClearLoads, for which the host waits. The caller adds the loads of each
  // training forward.
  absl::StatusOr<std::span<const int64_t>> Loads();
  absl::Status AddLoads(const MoeActivations& activations);
  void ClearLoads() {
    loads_.assign(loads_.size(), 0);
    new_loads_.clear();
  }

 private:
  // The matrices of this rank's experts, stacked by rows.
  struct Matrices {
    absl::Status CheckValues() const;
    absl::Status CheckGradients() const;
    bool trainable() const { return weight.trainable() || adapter; }

    Parameter weight;
    std::optional<Parameter> bias = {};
    std::optional<LoraAdapter> adapter = {};
  };

  MoeMlp(const MoeGroups& groups, const MoeOptions& options, IndexRange units,
         Parameter router, std::optional<Parameter> bias, Matrices gate_up,
         Matrices down, std::optional<GatedMlp> shared);

  static absl::StatusOr<Matrices> MatricesOf(const MoeGroups& groups,
                                             const MoeOptions& options,
                                             LoraAdapter::Divided divided,
                                             Parameter::Spec spec);

  absl::Status CreateBiases();

  int64_t local_experts() const {
    return options_.experts / groups_.experts.size();
  }
  Ops& ops() const { return groups_.tensor.ops(); }
  DType statistics() const { return GradientDType(options_.dtype); }
  absl::Status CheckValues() const;
  absl::Status CheckGradients() const;

  absl::StatusOr<ConstTensorView> AllTokens(const Partition& tokens,
                                            ConstTensorView mine,
                                            ReusableTensor& memory);
  absl::Status Route(ConstTensorView x, int64_t sequences,
                     PooledTensor& weights, MoeActivations& a);
  absl::Status AddLogitBias(TensorView logits, TensorPool& pool);
  absl::Status Plan(int64_t tokens, int64_t sequences, MoeActivations& a);
  int64_t CapacityFor(int64_t tokens) const;
  absl::StatusOr<std::vector<int64_t>> CountRows(int64_t choices,
                                                 int64_t capacity,
                                                 const MoeActivations& a);
  absl::Status ExchangeCounts(const std::vector<int64_t>& counts,
                              DispatchPlan& plan) const;
  absl::Status Upload(std::span<const int64_t> numbers, PooledTensor& list);
  absl::Status Exchange(ConstTensorView rows, bool back,
                        const DispatchPlan& plan, TensorView result) const;
  absl::Status Dispatch(ConstTensorView table, bool by_slot,
                        const MoeActivations& a, PooledTensor& result);
  absl::Status Return(ConstTensorView rows, const MoeActivations& a,
                      PooledTensor& result);
  absl::Status Combine(ConstTensorView returned, const Partition& tokens,
                       const MoeActivations& a, TensorView sum);
  absl::StatusOr<TensorView> AllSums(int64_t tokens, TensorView mine);
  absl::Status Distribute(const Partition& tokens, TensorView all,
                          TensorView mine);
  absl::StatusOr<TensorView> PartOf(TensorView gate_up, int64_t part) const;

  // Calls product(expert, first row, rows) for each of this rank's experts.
  template <typename Product>
  absl::Status ForEachExpert(const DispatchPlan& plan, const Product& product);
  absl::Status Multiply(const DispatchPlan& plan, ConstTensorView rows,
                        bool back, Matrices& matrices, TensorView result);
  absl::Status AddProducts(const DispatchPlan& plan, ConstTensorView gradient,
                           ConstTensorView input, Matrices& matrices);
  absl::Status AddBiases(const DispatchPlan& plan, ConstTensorView biases,
                         TensorView rows);
  absl::Status AddBiasSums(const DispatchPlan& plan, ConstTensorView gradient,
                           TensorView biases_gradient);
  absl::StatusOr<TensorView> DownBiases(const MoeActivations& a,
                                        PooledTensor& memory);
  absl::Status AddDownBiases(const MoeActivations& a, TensorView outputs);
  absl::Status AddBiasSlopes(const MoeActivations& a, TensorView slopes);
  absl::Status AddBiasGradients(const MoeActivations& a);
  // The sums over tensor ranks contain the biases of down once.
  bool adds_down_biases() const {
    return down_.bias.has_value() && groups_.tensor.rank() == 0;
  }
  absl::Status AddExpertGradients(const MoeActivations& a);
  absl::Status BackwardExperts(MoeActivations& a, PooledTensor& weights_memory,
                               PooledTensor& input_memory);
  absl::Status BackwardRouter(int64_t count, ConstTensorView returned,
                              MoeActivations& a);
  absl::StatusOr<ConstTensorView> BalanceLoads(const MoeActivations& a,
                                               PooledTensor& memory);

  MoeGroups groups_;
  MoeOptions options_;
  IndexRange units_;  // This rank's part of an expert's hidden units.
  Parameter router_;
  std::optional<Parameter> bias_;
  Matrices gate_up_;
  Matrices down_;
  std::optional<Parameter> logit_bias_;
  std::optional<GatedMlp> shared_;
  std::shared_ptr<StagingPool> staging_;
  std::vector<int64_t> loads_;
  std::vector<Download> new_loads_;  // Not in loads_ yet.
  ReusableTensor all_x_ = groups_.tensor.Working("all tokens of x");
  ReusableTensor all_y_ = groups_.tensor.Working("all tokens of y");
  ReusableTensor sums_ = groups_.tensor.Working("sums of experts");
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_MOE_MLP_H_
