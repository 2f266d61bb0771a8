#include "tensor_parallel/blocks/moe_mlp.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kGate = 0;
constexpr int64_t kUp = 1;

absl::Status CheckHeld(bool held, const char* pass) {
  if (held) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("MoeMlp::", pass,
                   " of activations that no forward has filled, or whose "
                   "backward is done"));
}

absl::Status CheckOptions(const MoeOptions& options, int64_t ranks) {
  const auto refuse = [](auto... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mixture of experts ", parts...));
  };
  if (options.width < 0 || options.hidden < 0 || options.shared_hidden < 0) {
    return refuse("of width ", options.width, " with experts of ",
                  options.hidden, " hidden units and a shared one of ",
                  options.shared_hidden, "; 0 and more are allowed");
  }
  if (options.experts < 1 || options.experts % ranks != 0) {
    return refuse("with ", options.experts, " experts over ", ranks,
                  " ranks; give a multiple of the ranks");
  }
  if (options.router.per_token < 1 ||
      options.router.per_token > options.experts) {
    return refuse("that gives a token ", options.router.per_token,
                  " experts; 1 to ", options.experts, " are allowed");
  }
  for (const double number :
       {options.balance, options.z_loss, options.capacity}) {
    if (number >= 0 && std::isfinite(number)) continue;
    return refuse("with a coefficient or capacity of ", number,
                  "; it should be at least 0 and finite");
  }
  if (options.padded && options.capacity == 0) {
    return refuse("with padded rows and no capacity; give a capacity above 0");
  }
  return absl::OkStatus();
}

// Adds the loads of each sequence, i64 [sequences, experts], to `counts`.
absl::Status AddTo(std::vector<int64_t>& counts, const Download& loads) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           loads.Wait());
  for (size_t i = 0; i < bytes.size() / sizeof(int64_t); ++i) {
    int64_t load;
    std::memcpy(&load, bytes.data() + i * sizeof(load), sizeof(load));
    counts[i % counts.size()] += load;
  }
  return absl::OkStatus();
}

// The part of a list of op::GroupByExpert that has rows.
absl::StatusOr<ConstTensorView> SentOf(const PooledTensor& list,
                                       const MoeActivations& a) {
  return ConstTensorView(list.view()).Narrow(0, 0, a.plan.sent);
}

// The same numbers as a matrix of one column, and as a list.
template <typename View>
absl::StatusOr<View> ColumnOf(const View& list) {
  return list.Reshape({{list.element_count(), 1}});
}
template <typename View>
absl::StatusOr<View> ListOf(const View& column) {
  return column.Reshape({{column.element_count()}});
}

}  // namespace

int64_t DispatchPlan::received() const {
  return std::accumulate(receive_rows.begin(), receive_rows.end(), int64_t{0});
}

namespace {

// The rows that a rank holds of a matrix of all experts, in which each expert
// has `parts` parts of `size` rows: the rows `mine` of each part of its
// `experts`. Adjacent ranges are merged.
std::vector<ParameterRows> ExpertRows(IndexRange experts, int64_t parts,
                                      int64_t size, IndexRange mine) {
  std::vector<ParameterRows> rows;
  for (int64_t p = experts.begin * parts; p < experts.end * parts; ++p) {
    const IndexRange next = {p * size + mine.begin, p * size + mine.end};
    if (!rows.empty() && rows.back().range.end == next.begin) {
      rows.back().range.end = next.end;
    } else {
      rows.push_back({next});
    }
  }
  return rows;
}

}  // namespace

MoeMlp::MoeMlp(const MoeGroups& groups, const MoeOptions& options,
               IndexRange units, Parameter router,
               std::optional<Parameter> bias, Matrices gate_up, Matrices down,
               std::optional<GatedMlp> shared)
    : groups_(groups),
      options_(options),
      units_(units),
      router_(std::move(router)),
      bias_(std::move(bias)),
      gate_up_(std::move(gate_up)),
      down_(std::move(down)),
      shared_(std::move(shared)),
      staging_(std::make_shared<StagingPool>(groups.tensor.queue())),
      loads_(static_cast<size_t>(options.experts)) {}

absl::StatusOr<MoeMlp> MoeMlp::Create(const MoeGroups& groups,
                                      const MoeOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options, groups.experts.size()));
  const TensorGroup& tensor = groups.tensor;
  const bool is_first = tensor.rank() == 0;
  TESSERA_ASSIGN_OR_RETURN(
      Parameter router,
      Parameter::Create(tensor, {.name = "weight",
                                 .shape = {options.experts, options.width},
                                 .rows = {{{0, options.experts}, is_first}},
                                 .columns = {0, options.width},
                                 .replicated = true,
                                 .dtype = options.dtype}));
  std::optional<Parameter> bias;
  if (options.router_bias) {
    TESSERA_ASSIGN_OR_RETURN(
        bias,
        Parameter::Create(tensor, {.name = "bias",
                                   .shape = {options.experts},
                                   .rows = {{{0, options.experts}, is_first}},
                                   .replicated = true,
                                   .trainable = false,
                                   .dtype = GradientDType(options.dtype)}));
  }
  TESSERA_ASSIGN_OR_RETURN(const Partition units,
                           Partition::Balanced(options.hidden, tensor.size()));
  const IndexRange mine = units.RangeOf(tensor.rank());
  const int64_t count = options.experts / groups.experts.size();
  const int64_t first = groups.experts.rank() * count;
  const IndexRange held = {first, first + count};
  const int64_t h = options.hidden;
  TESSERA_ASSIGN_OR_RETURN(
      Matrices gate_up,
      MatricesOf(groups, options, LoraAdapter::Divided::kRows,
                 {.shape = {2 * options.experts * h, options.width},
                  .rows = ExpertRows(held, 2, h, mine),
                  .columns = {0, options.width}}));
  TESSERA_ASSIGN_OR_RETURN(
      Matrices down, MatricesOf(groups, options, LoraAdapter::Divided::kColumns,
                                {.shape = {options.experts * options.width, h},
                                 .rows = ExpertRows(held, 1, options.width,
                                                    {0, options.width}),
                                 .columns = mine}));
  std::optional<GatedMlp> shared;
  if (options.shared_hidden > 0) {
    TESSERA_ASSIGN_OR_RETURN(
        GatedMlp mlp, GatedMlp::Create(tensor, {.width = options.width,
                                                .hidden = options.shared_hidden,
                                                .kind = options.glu,
                                                .dtype = options.dtype,
                                                .lora = options.lora}));
    shared.emplace(std::move(mlp));
  }
  MoeMlp moe(groups, options, mine, std::move(router), std::move(bias),
             std::move(gate_up), std::move(down), std::move(shared));
  if (options.biases) TESSERA_RETURN_IF_ERROR(moe.CreateBiases());
  std::vector<Parameter*> named;
  moe.AppendParameters("", named);
  return moe;
}

absl::Status MoeMlp::CreateBiases() {
  const int64_t all = options_.experts, h = options_.hidden;
  const int64_t width = options_.width, count = local_experts();
  const int64_t first = groups_.experts.rank() * count;
  const IndexRange held = {first, first + count};
  const bool is_first = groups_.tensor.rank() == 0;
  const bool is_divided = groups_.experts.size() > 1;
  const auto create = [&](int64_t size, std::vector<ParameterRows> rows,
                          bool replicated, bool expert_parallel) {
    for (ParameterRows& range : rows) range.primary = is_first || !replicated;
    return Parameter::Create(groups_.tensor,
                             {.name = "bias",
                              .shape = {size},
                              .rows = std::move(rows),
                              .replicated = replicated,
                              .expert_parallel = expert_parallel,
                              .dtype = options_.dtype});
  };
  TESSERA_ASSIGN_OR_RETURN(logit_bias_,
                           create(all, {{{0, all}}}, /*replicated=*/true,
                                  /*expert_parallel=*/false));
  TESSERA_ASSIGN_OR_RETURN(gate_up_.bias,
                           create(2 * all * h, ExpertRows(held, 2, h, units_),
                                  /*replicated=*/false, is_divided));
  TESSERA_ASSIGN_OR_RETURN(
      down_.bias, create(all * width, ExpertRows(held, 1, width, {0, width}),
                         /*replicated=*/true, is_divided));
  return absl::OkStatus();
}

// Completes the specification of the weights, and creates their adapters.
absl::StatusOr<MoeMlp::Matrices> MoeMlp::MatricesOf(
    const MoeGroups& groups, const MoeOptions& options,
    LoraAdapter::Divided divided, Parameter::Spec spec) {
  spec.name = "weight";
  spec.matrices = options.experts;
  spec.expert_parallel = groups.experts.size() > 1;
  spec.dtype = options.dtype;
  TESSERA_ASSIGN_OR_RETURN(Parameter weight,
                           Parameter::Create(groups.tensor, std::move(spec)));
  Matrices matrices = {.weight = std::move(weight)};
  if (options.lora.rank == 0) return matrices;
  const int64_t count = options.experts / groups.experts.size();
  const int64_t height = matrices.weight.local_shape()[0] / count;
  LoraProjections experts = {.first = groups.experts.rank() * count,
                             .all = options.experts};
  for (int64_t e = 0; e < count; ++e) {
    experts.outputs.push_back({e * height, (e + 1) * height});
  }
  TESSERA_ASSIGN_OR_RETURN(
      LoraAdapter adapter,
      LoraAdapter::Create(groups.tensor, options.lora, matrices.weight, divided,
                          std::move(experts)));
  matrices.adapter.emplace(std::move(adapter));
  return matrices;
}

void MoeMlp::AppendParameters(std::string_view prefix,
                              std::vector<Parameter*>& parameters) {
  const auto add = [&](Parameter& parameter, std::string_view name) {
    parameter.Rename(ParameterName(prefix, name));
    parameters.push_back(&parameter);
  };
  add(router_, "router.weight");
  if (bias_) add(*bias_, "router.bias");
  if (logit_bias_) add(*logit_bias_, "router.logit_bias");
  const auto add_matrices = [&](Matrices& matrices, std::string_view name) {
    add(matrices.weight, ParameterName(name, "weight"));
    if (matrices.bias) add(*matrices.bias, ParameterName(name, "bias"));
    if (matrices.adapter) {
      matrices.adapter->AppendParameters(ParameterName(prefix, name),
                                         parameters);
    }
  };
  add_matrices(gate_up_, "experts.gate_up");
  add_matrices(down_, "experts.down");
  if (shared_) {
    shared_->AppendParameters(ParameterName(prefix, "shared"), parameters);
  }
}

absl::Status MoeMlp::Matrices::CheckValues() const {
  TESSERA_RETURN_IF_ERROR(weight.CheckValue());
  if (bias) TESSERA_RETURN_IF_ERROR(bias->CheckValue());
  return adapter ? adapter->CheckValues() : absl::OkStatus();
}

absl::Status MoeMlp::Matrices::CheckGradients() const {
  TESSERA_RETURN_IF_ERROR(weight.CheckGradient());
  if (bias) TESSERA_RETURN_IF_ERROR(bias->CheckGradient());
  return adapter ? adapter->CheckGradients() : absl::OkStatus();
}

absl::Status MoeMlp::CheckValues() const {
  TESSERA_RETURN_IF_ERROR(router_.CheckValue());
  if (bias_) TESSERA_RETURN_IF_ERROR(bias_->CheckValue());
  if (logit_bias_) TESSERA_RETURN_IF_ERROR(logit_bias_->CheckValue());
  TESSERA_RETURN_IF_ERROR(gate_up_.CheckValues());
  return down_.CheckValues();
}

absl::Status MoeMlp::CheckGradients() const {
  TESSERA_RETURN_IF_ERROR(router_.CheckGradient());
  if (logit_bias_) TESSERA_RETURN_IF_ERROR(logit_bias_->CheckGradient());
  TESSERA_RETURN_IF_ERROR(gate_up_.CheckGradients());
  return down_.CheckGradients();
}

absl::StatusOr<TensorView> MoeMlp::PartOf(TensorView gate_up,
                                          int64_t part) const {
  return gate_up.Narrow(1, part * units_.size(), units_.size());
}

// The tokens of all tensor ranks.
absl::StatusOr<ConstTensorView> MoeMlp::AllTokens(const Partition& tokens,
                                                  ConstTensorView mine,
                                                  ReusableTensor& memory) {
  if (!groups_.tensor.sequence_parallel() || groups_.tensor.size() == 1) {
    TESSERA_RETURN_IF_ERROR(CheckTokenRows("the tensor", mine, tokens.size()));
    return mine;
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      memory.Get(options_.dtype, {{tokens.size(), options_.width}}));
  TESSERA_RETURN_IF_ERROR(groups_.tensor.GatherTokens(tokens, mine, all));
  return ConstTensorView(all);
}

absl::Status MoeMlp::Upload(std::span<const int64_t> numbers,
                            PooledTensor& list) {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView target,
      list.ReserveVarying(DType::kI64,
                          {{static_cast<int64_t>(numbers.size())}}));
  return staging_->Upload(
      std::as_bytes(numbers),
      {target.data(), static_cast<size_t>(target.size_in_bytes())});
}

// Sets the logits, experts and weights of each token, and the dispatch plan.
absl::Status MoeMlp::Route(ConstTensorView x, int64_t sequences,
                           PooledTensor& weights, MoeActivations& a) {
  const int64_t tokens = x.shape()[0], k = options_.router.per_token;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView logits,
      a.logits.Reserve(statistics(), {{tokens, options_.experts}}));
  TESSERA_RETURN_IF_ERROR(
      ops().Run(op::Gemm{{.transpose_b = true}, x, router_.value(), logits}));
  TESSERA_RETURN_IF_ERROR(AddLogitBias(logits, weights.pool()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView experts,
                           a.experts.Reserve(DType::kI64, {{tokens, k}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_tokens,
                           weights.Reserve(statistics(), {{tokens, k}}));
  TESSERA_ASSIGN_OR_RETURN(
      const ConstTensorView none,
      ConstTensorView::Create({logits.data(), 0}, statistics(), {{0}},
                              logits.kind()));
  TESSERA_RETURN_IF_ERROR(ops().Run(op::Route{
      options_.router, logits, bias_ ? ConstTensorView(bias_->value()) : none,
      of_tokens, experts}));
  return Plan(tokens, sequences, a);
}

absl::Status MoeMlp::AddLogitBias(TensorView logits, TensorPool& pool) {
  if (!logit_bias_) return absl::OkStatus();
  PooledTensor memory(pool);
  ConstTensorView bias = logit_bias_->value();
  if (bias.dtype() != statistics()) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView exact,
                             memory.Reserve(statistics(), bias.shape()));
    TESSERA_RETURN_IF_ERROR(ops().Run(op::Cast{bias, exact}));
    bias = exact;
  }
  return ops().Run(op::AddBias{bias, logits});
}

// The number of rows that an expert accepts; negative: all.
int64_t MoeMlp::CapacityFor(int64_t tokens) const {
  if (options_.capacity == 0) return -1;
  return static_cast<int64_t>(
      std::ceil(options_.capacity *
                static_cast<double>(tokens * options_.router.per_token) /
                static_cast<double>(options_.experts)));
}

absl::Status MoeMlp::Plan(int64_t tokens, int64_t sequences,
                          MoeActivations& a) {
  const int64_t k = options_.router.per_token, all = options_.experts;
  if (sequences < 0 || (sequences == 0 ? tokens : tokens % sequences) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mixture of experts for ", tokens, " tokens of ",
                     sequences, " sequences; give sequences of one length"));
  }
  const int64_t capacity = CapacityFor(tokens);
  const int64_t rows = options_.padded ? all * capacity : tokens * k;
  TESSERA_ASSIGN_OR_RETURN(const TensorView loads,
                           a.loads.Reserve(DType::kI64, {{sequences, all}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView slots,
                           a.slots.Reserve(DType::kI64, {{rows}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_slots,
                           a.tokens.Reserve(DType::kI64, {{rows}}));
  TESSERA_RETURN_IF_ERROR(ops().Run(op::GroupByExpert{
      capacity, options_.padded, a.experts.view(), loads, slots, of_slots}));
  if (ops().computes()) {
    TESSERA_ASSIGN_OR_RETURN(
        a.counted,
        staging_->StartDownload(
            {loads.data(), static_cast<size_t>(loads.size_in_bytes())}));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> counts,
                           CountRows(tokens * k, capacity, a));
  TESSERA_RETURN_IF_ERROR(ExchangeCounts(counts, a.plan));
  if (a.plan.places.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Upload(a.plan.places, a.places));
  std::vector<int64_t> returns(a.plan.places.size());
  for (size_t i = 0; i < returns.size(); ++i) {
    returns[static_cast<size_t>(a.plan.places[i])] = static_cast<int64_t>(i);
  }
  return Upload(returns, a.returns);
}

// The number of rows of each expert from this rank's tokens.
absl::StatusOr<std::vector<int64_t>> MoeMlp::CountRows(
    int64_t choices, int64_t capacity, const MoeActivations& a) {
  const int64_t all = options_.experts;
  std::vector<int64_t> rows(static_cast<size_t>(all), capacity);
  if (options_.padded) return rows;
  if (ops().computes()) {
    std::fill(rows.begin(), rows.end(), 0);
    TESSERA_RETURN_IF_ERROR(AddTo(rows, a.counted));
  } else {
    // A dry run distributes the tokens evenly over the experts.
    for (int64_t e = 0; e < all; ++e) {
      rows[static_cast<size_t>(e)] =
          choices / all + (e < choices % all ? 1 : 0);
    }
  }
  if (capacity < 0) return rows;
  for (int64_t& count : rows) count = std::min(count, capacity);
  return rows;
}

// `counts[e]`: the rows that this rank sends to expert e.
absl::Status MoeMlp::ExchangeCounts(const std::vector<int64_t>& counts,
                                    DispatchPlan& plan) const {
  const int64_t ranks = groups_.experts.size(), own = local_experts();
  std::vector<int64_t> received = counts;  // [rank, expert of that rank].
  if (ranks > 1) {
    TESSERA_RETURN_IF_ERROR(groups_.experts.communicator()->host().AllToAll(
        collectives::ConstBuffer(std::span(counts)),
        collectives::Buffer(std::span(received))));
  }
  if (!ops().computes()) {
    const auto first = counts.begin() + groups_.experts.rank() * own;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::copy_n(first, own, received.begin() + rank * own);
    }
  }
  const auto sum = [own](const std::vector<int64_t>& all, int64_t rank) {
    const auto begin = all.begin() + rank * own;
    return std::accumulate(begin, begin + own, int64_t{0});
  };
  plan.sent = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  plan.send_rows.clear();
  plan.receive_rows.clear();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    plan.send_rows.push_back(sum(counts, rank));
    plan.receive_rows.push_back(sum(received, rank));
  }
  plan.expert_rows.assign(static_cast<size_t>(own), 0);
  plan.places.clear();
  for (int64_t expert = 0; expert < own; ++expert) {
    int64_t place = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t other = 0; other < own; ++other) {
        const int64_t rows = received[static_cast<size_t>(rank * own + other)];
        if (other == expert) {
          plan.expert_rows[static_cast<size_t>(expert)] += rows;
          for (int64_t i = 0; i < rows && ranks > 1 && own > 1; ++i) {
            plan.places.push_back(place + i);
          }
        }
        place += rows;
      }
    }
  }
  return absl::OkStatus();
}

// `result` = the rows that other ranks dispatched; with `back`, the rows that
// they return.
absl::Status MoeMlp::Exchange(ConstTensorView rows, bool back,
                              const DispatchPlan& plan,
                              TensorView result) const {
  const int64_t width = rows.shape()[1];
  std::vector<int64_t> send = back ? plan.receive_rows : plan.send_rows;
  std::vector<int64_t> receive = back ? plan.send_rows : plan.receive_rows;
  for (int64_t& count : send) count *= width;
  for (int64_t& count : receive) count *= width;
  const collectives::Operation operation = collectives::AllToAllOf(
      collectives::ConstBuffer(rows.data(), rows.element_count(), rows.dtype()),
      collectives::Buffer(result.data(), result.element_count(),
                          result.dtype()),
      std::move(send), std::move(receive));
  collectives::Communicator& ranks = *groups_.experts.communicator();
  Queue& queue = groups_.experts.queue();
  Meanwhile* const meanwhile = groups_.experts.meanwhile();
  if (meanwhile == nullptr || !meanwhile->has_work()) {
    return ranks.RunOn(queue, operation);
  }
  TESSERA_ASSIGN_OR_RETURN(const collectives::Work work,
                           ranks.StartOn(queue, operation));
  meanwhile->Work();
  return queue.Wait(work.event());
}

// `result` = the rows of this rank's experts, in the order of experts, from a
// table with one row per token, or with `by_slot` one row per slot.
absl::Status MoeMlp::Dispatch(ConstTensorView table, bool by_slot,
                              const MoeActivations& a, PooledTensor& result) {
  const int64_t width = table.shape()[1];
  const int64_t sent = a.plan.sent, received = a.plan.received();
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView ids,
                           SentOf(by_slot ? a.slots : a.tokens, a));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView rows,
      result.ReserveVarying(table.dtype(), {{received, width}}));
  const bool travels = groups_.experts.size() > 1;
  PooledTensor chosen(result.pool());
  TensorView gathered = rows;
  if (travels) {
    TESSERA_ASSIGN_OR_RETURN(
        gathered, chosen.ReserveVarying(table.dtype(), {{sent, width}}));
  }
  TESSERA_RETURN_IF_ERROR(
      ops().Run(op::GatherRows{table, {0, table.shape()[0]}, ids, gathered}));
  if (!travels) return absl::OkStatus();
  if (a.plan.places.empty()) {
    return Exchange(gathered, /*back=*/false, a.plan, rows);
  }
  PooledTensor arrived(result.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView by_rank,
      arrived.ReserveVarying(table.dtype(), {{received, width}}));
  TESSERA_RETURN_IF_ERROR(Exchange(gathered, /*back=*/false, a.plan, by_rank));
  return ops().Run(
      op::GatherRows{by_rank, {0, received}, a.places.view(), rows});
}

// `result` = the rows that this rank sent, in the order in which it sent them,
// from the results of all ranks' experts.
absl::Status MoeMlp::Return(ConstTensorView rows, const MoeActivations& a,
                            PooledTensor& result) {
  const int64_t width = rows.shape()[1];
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView returned,
      result.ReserveVarying(rows.dtype(), {{a.plan.sent, width}}));
  if (groups_.experts.size() == 1) return ops().Run(op::Copy{rows, returned});
  if (a.plan.places.empty()) {
    return Exchange(rows, /*back=*/true, a.plan, returned);
  }
  PooledTensor memory(result.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView by_rank,
      memory.ReserveVarying(rows.dtype(), {{a.plan.received(), width}}));
  TESSERA_RETURN_IF_ERROR(ops().Run(
      op::GatherRows{rows, {0, a.plan.received()}, a.returns.view(), by_rank}));
  return Exchange(by_rank, /*back=*/true, a.plan, returned);
}

// The memory for sums over the experts of each token, in the type of
// statistics: `mine` if it can hold them.
absl::StatusOr<TensorView> MoeMlp::AllSums(int64_t tokens, TensorView mine) {
  const bool is_whole =
      !groups_.tensor.sequence_parallel() || groups_.tensor.size() == 1;
  if (is_whole && options_.dtype == statistics()) return mine;
  return sums_.Get(statistics(), {{tokens, options_.width}});
}

// `mine` = this rank's tokens of the sum of all tensor ranks' `all`.
absl::Status MoeMlp::Distribute(const Partition& tokens, TensorView all,
                                TensorView mine) {
  const bool parts =
      groups_.tensor.sequence_parallel() && groups_.tensor.size() > 1;
  TensorView rounded = all;
  if (all.dtype() != options_.dtype) {
    rounded = mine;
    if (parts) {
      TESSERA_ASSIGN_OR_RETURN(
          rounded,
          all_y_.Get(options_.dtype, {{tokens.size(), options_.width}}));
    }
    TESSERA_RETURN_IF_ERROR(ops().Run(op::Cast{all, rounded}));
  }
  return parts ? groups_.tensor.ScatterSums(tokens, rounded, mine)
               : groups_.tensor.SumOver(mine);
}

// `sum` = for each token, the sum of the rows that Return received.
absl::Status MoeMlp::Combine(ConstTensorView returned, const Partition& tokens,
                             const MoeActivations& a, TensorView sum) {
  TESSERA_RETURN_IF_ERROR(ops().Run(op::Fill{0, sum}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView ids, SentOf(a.tokens, a));
  return ops().Run(op::AddRows{returned, {0, tokens.size()}, ids, sum});
}

template <typename Product>
absl::Status MoeMlp::ForEachExpert(const DispatchPlan& plan,
                                   const Product& product) {
  int64_t first = 0;
  for (int64_t expert = 0; expert < local_experts(); ++expert) {
    const int64_t rows = plan.expert_rows[static_cast<size_t>(expert)];
    if (rows > 0) TESSERA_RETURN_IF_ERROR(product(expert, first, rows));
    first += rows;
  }
  return absl::OkStatus();
}

// The product of each expert's rows and its transposed matrix; `back`: of the
// rows' gradients and the matrix.
absl::Status MoeMlp::Multiply(const DispatchPlan& plan, ConstTensorView rows,
                              bool back, Matrices& matrices,
                              TensorView result) {
  TESSERA_RETURN_IF_ERROR(ops().Run(op::GroupedGemm{{.transpose_b = !back},
                                                    plan.expert_rows,
                                                    rows,
                                                    matrices.weight.value(),
                                                    result}));
  if (!matrices.adapter) return absl::OkStatus();
  return ForEachExpert(
      plan, [&](int64_t expert, int64_t first, int64_t count) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView a,
                                 rows.Narrow(0, first, count));
        TESSERA_ASSIGN_OR_RETURN(const TensorView c,
                                 result.Narrow(0, first, count));
        return back ? matrices.adapter->AddInputGradient(a, c, expert)
                    : matrices.adapter->AddForward(a, c, expert);
      });
}

absl::Status MoeMlp::AddProducts(const DispatchPlan& plan,
                                 ConstTensorView gradient,
                                 ConstTensorView input, Matrices& matrices) {
  if (matrices.weight.trainable()) {
    TESSERA_RETURN_IF_ERROR(
        ops().Run(op::GroupedGemm{{.transpose_a = true, .beta = 1},
                                  plan.expert_rows,
                                  gradient,
                                  input,
                                  matrices.weight.gradient()}));
  }
  if (!matrices.adapter) return absl::OkStatus();
  return ForEachExpert(
      plan, [&](int64_t expert, int64_t first, int64_t count) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView a,
                                 gradient.Narrow(0, first, count));
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView b,
                                 input.Narrow(0, first, count));
        return matrices.adapter->AddWeightGradients(a, b, expert);
      });
}

// Adds to each expert's rows its part of `biases`.
absl::Status MoeMlp::AddBiases(const DispatchPlan& plan, ConstTensorView biases,
                               TensorView rows) {
  const int64_t width = rows.shape()[1];
  return ForEachExpert(
      plan, [&](int64_t expert, int64_t first, int64_t count) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView bias,
                                 biases.Narrow(0, expert * width, width));
        TESSERA_ASSIGN_OR_RETURN(const TensorView x,
                                 rows.Narrow(0, first, count));
        return ops().Run(op::AddBias{bias, x});
      });
}

// Adds the sum of each expert's rows of `gradient` to its part.
absl::Status MoeMlp::AddBiasSums(const DispatchPlan& plan,
                                 ConstTensorView gradient,
                                 TensorView biases_gradient) {
  const int64_t width = gradient.shape()[1];
  return ForEachExpert(
      plan, [&](int64_t expert, int64_t first, int64_t count) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            const TensorView sum,
            biases_gradient.Narrow(0, expert * width, width));
        TESSERA_ASSIGN_OR_RETURN(const ConstTensorView rows,
                                 gradient.Narrow(0, first, count));
        return ops().Run(op::SumRows{rows, sum});
      });
}

// The bias of down for each of this rank's rows.
absl::StatusOr<TensorView> MoeMlp::DownBiases(const MoeActivations& a,
                                              PooledTensor& memory) {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView rows,
      memory.ReserveVarying(options_.dtype,
                            {{a.plan.received(), options_.width}}));
  TESSERA_RETURN_IF_ERROR(ops().Run(op::Fill{0, rows}));
  TESSERA_RETURN_IF_ERROR(AddBiases(a.plan, down_.bias->value(), rows));
  return rows;
}

// Adds the biases of down, times the weights of the rows.
absl::Status MoeMlp::AddDownBiases(const MoeActivations& a,
                                   TensorView outputs) {
  if (!adds_down_biases()) return absl::OkStatus();
  PooledTensor memory(a.logits.pool());
  TESSERA_ASSIGN_OR_RETURN(const TensorView biases, DownBiases(a, memory));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView weights,
                           ListOf(ConstTensorView(a.weights.view())));
  TESSERA_RETURN_IF_ERROR(ops().Run(op::ScaleRows{weights, biases, biases}));
  return ops().Run(op::Add{biases, outputs});
}

// Adds the products of the biases of down and the outputs' gradients to the
// gradients of the weights of the rows.
absl::Status MoeMlp::AddBiasSlopes(const MoeActivations& a, TensorView slopes) {
  if (!adds_down_biases()) return absl::OkStatus();
  PooledTensor memory(a.logits.pool()), dots(a.logits.pool());
  TESSERA_ASSIGN_OR_RETURN(const TensorView biases, DownBiases(a, memory));
  const int64_t rows = biases.shape()[0];
  TESSERA_ASSIGN_OR_RETURN(const TensorView sums,
                           dots.ReserveVarying(statistics(), {{rows, 1}}));
  const int64_t shape[] = {rows, 1, options_.width};
  TESSERA_ASSIGN_OR_RETURN(const TensorView bias, biases.Reshape(shape));
  TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                           a.output_gradient.view().Reshape(shape));
  TESSERA_RETURN_IF_ERROR(ops().Run(op::RowDots{bias, gradient, sums}));
  return ops().Run(op::Add{sums, slopes});
}

absl::Status MoeMlp::AddBiasGradients(const MoeActivations& a) {
  if (!options_.biases) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(ops().Run(
      op::SumRows{a.logits_gradient.view(), logit_bias_->gradient()}));
  TESSERA_RETURN_IF_ERROR(
      AddBiasSums(a.plan, a.gate_up.view(), gate_up_.bias->gradient()));
  PooledTensor memory(a.logits.pool());
  const TensorView gradient = a.output_gradient.view();
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView weighted,
      memory.ReserveVarying(options_.dtype, gradient.shape()));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView weights,
                           ListOf(ConstTensorView(a.weights.view())));
  TESSERA_RETURN_IF_ERROR(
      ops().Run(op::ScaleRows{weights, gradient, weighted}));
  return AddBiasSums(a.plan, weighted, down_.bias->gradient());
}

absl::Status MoeMlp::ForwardActivations(const Partition& tokens,
                                        int64_t sequences, ConstTensorView x,
                                        MoeActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  if (shared_) {
    TESSERA_RETURN_IF_ERROR(shared_->ForwardActivations(tokens, x, a.shared));
  }
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all,
                           AllTokens(tokens, x, all_x_));
  PooledTensor weights(a.logits.pool());
  TESSERA_RETURN_IF_ERROR(Route(all, sequences, weights, a));
  TESSERA_RETURN_IF_ERROR(Dispatch(all, /*by_slot=*/false, a, a.input));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView by_slot,
                           ColumnOf(ConstTensorView(weights.view())));
  TESSERA_RETURN_IF_ERROR(Dispatch(by_slot, /*by_slot=*/true, a, a.weights));
  const int64_t rows = a.plan.received();
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView both,
      a.gate_up.ReserveVarying(options_.dtype, {{rows, 2 * units_.size()}}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView product,
      a.product.ReserveVarying(options_.dtype, {{rows, units_.size()}}));
  TESSERA_RETURN_IF_ERROR(
      Multiply(a.plan, a.input.view(), /*back=*/false, gate_up_, both));
  if (gate_up_.bias) {
    TESSERA_RETURN_IF_ERROR(AddBiases(a.plan, gate_up_.bias->value(), both));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView gate, PartOf(both, kGate));
  TESSERA_ASSIGN_OR_RETURN(const TensorView up, PartOf(both, kUp));
  return ops().Run(op::Glu{options_.glu, gate, up, product});
}

absl::Status MoeMlp::Forward(const Partition& tokens, int64_t sequences,
                             ConstTensorView x, TensorView y,
                             MoeActivations& a) {
  TESSERA_RETURN_IF_ERROR(ForwardActivations(tokens, sequences, x, a));
  TensorPool& pool = a.logits.pool();
  const int64_t rows = a.plan.received();
  PooledTensor weighted(pool), output(pool), returned(pool);
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView product,
      weighted.ReserveVarying(options_.dtype, {{rows, units_.size()}}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView weights,
                           ListOf(ConstTensorView(a.weights.view())));
  TESSERA_RETURN_IF_ERROR(
      ops().Run(op::ScaleRows{weights, a.product.view(), product}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView outputs,
      output.ReserveVarying(options_.dtype, {{rows, options_.width}}));
  TESSERA_RETURN_IF_ERROR(
      Multiply(a.plan, product, /*back=*/false, down_, outputs));
  weighted.Release();
  TESSERA_RETURN_IF_ERROR(AddDownBiases(a, outputs));
  TESSERA_RETURN_IF_ERROR(Return(outputs, a, returned));
  output.Release();
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum, AllSums(tokens.size(), y));
  TESSERA_RETURN_IF_ERROR(Combine(returned.view(), tokens, a, sum));
  TESSERA_RETURN_IF_ERROR(Distribute(tokens, sum, y));
  if (!shared_) return absl::OkStatus();
  PooledTensor common(pool);
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_shared,
                           common.Reserve(options_.dtype, y.shape()));
  TESSERA_RETURN_IF_ERROR(shared_->ForwardOutput(tokens, of_shared, a.shared));
  return ops().Run(op::Add{of_shared, y});
}

// For the balance term, the loads of each sequence on all context ranks; empty
// without that term, and on tensor ranks after the first, because the ranks'
// gradients are summed.
absl::StatusOr<ConstTensorView> MoeMlp::BalanceLoads(const MoeActivations& a,
                                                     PooledTensor& memory) {
  const TensorView own = a.loads.view();
  ConstTensorView loads = own;
  if (options_.balance == 0) return loads.Narrow(0, 0, 0);
  if (groups_.context.size() > 1 && own.element_count() > 0) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView sum,
                             memory.Reserve(DType::kI64, own.shape()));
    TESSERA_RETURN_IF_ERROR(groups_.context.communicator()->RunOn(
        groups_.context.queue(),
        collectives::AllReduceOf(
            collectives::ConstBuffer(own.data(), own.element_count(),
                                     DType::kI64),
            collectives::Buffer(sum.data(), sum.element_count(), DType::kI64),
            collectives::Reduction::Sum())));
    loads = sum;
  }
  return groups_.tensor.rank() == 0 ? loads : loads.Narrow(0, 0, 0);
}

// Sets the gradients of the experts' inputs, and of the weights of their rows.
absl::Status MoeMlp::BackwardExperts(MoeActivations& a,
                                     PooledTensor& weights_memory,
                                     PooledTensor& input_memory) {
  const int64_t rows = a.plan.received();
  PooledTensor product_memory(a.logits.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView product_gradient,
      product_memory.ReserveVarying(options_.dtype, {{rows, units_.size()}}));
  TESSERA_RETURN_IF_ERROR(Multiply(a.plan, a.output_gradient.view(),
                                   /*back=*/true, down_, product_gradient));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView weights_gradient,
      weights_memory.ReserveVarying(statistics(), {{rows, 1}}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView weights,
                           ListOf(ConstTensorView(a.weights.view())));
  TESSERA_ASSIGN_OR_RETURN(const TensorView weight_slopes,
                           ListOf(weights_gradient));
  TESSERA_RETURN_IF_ERROR(ops().Run(
      op::ScaleRowsGradient{product_gradient, weights, a.product.view(),
                            product_gradient, weight_slopes}));
  TESSERA_RETURN_IF_ERROR(AddBiasSlopes(a, weights_gradient));
  TESSERA_ASSIGN_OR_RETURN(const TensorView gate,
                           PartOf(a.gate_up.view(), kGate));
  TESSERA_ASSIGN_OR_RETURN(const TensorView up, PartOf(a.gate_up.view(), kUp));
  TESSERA_RETURN_IF_ERROR(ops().Run(
      op::GluGradient{options_.glu, product_gradient, gate, up, gate, up}));
  product_memory.Release();
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView input_gradient,
      input_memory.ReserveVarying(options_.dtype, {{rows, options_.width}}));
  return Multiply(a.plan, a.gate_up.view(), /*back=*/true, gate_up_,
                  input_gradient);
}

// Sets the gradient of the logits from those of the rows' weights, `returned`
// to the rank of their tokens.
absl::Status MoeMlp::BackwardRouter(int64_t count, ConstTensorView returned,
                                    MoeActivations& a) {
  TensorPool& pool = a.logits.pool();
  const int64_t k = options_.router.per_token;
  PooledTensor of_tokens(pool), all_loads(pool), logits(pool);
  TESSERA_ASSIGN_OR_RETURN(const TensorView by_token,
                           of_tokens.Reserve(statistics(), {{count, k}}));
  TESSERA_RETURN_IF_ERROR(ops().Run(op::Fill{0, by_token}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView by_slot, ColumnOf(by_token));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView slots, SentOf(a.slots, a));
  TESSERA_RETURN_IF_ERROR(
      ops().Run(op::AddRows{returned, {0, count * k}, slots, by_slot}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView loads,
                           BalanceLoads(a, all_loads));
  const int64_t shape[] = {count, options_.experts};
  TESSERA_ASSIGN_OR_RETURN(const TensorView logits_gradient,
                           a.logits_gradient.Reserve(options_.dtype, shape));
  TensorView exact = logits_gradient;
  if (options_.dtype != statistics()) {
    TESSERA_ASSIGN_OR_RETURN(exact, logits.Reserve(statistics(), shape));
  }
  const int64_t tokens_of_loss = a.loss_tokens == 0 ? count : a.loss_tokens;
  const double z_loss =
      groups_.tensor.rank() == 0 && count > 0
          ? options_.z_loss * a.loss_scale / static_cast<double>(tokens_of_loss)
          : 0;
  const auto sequences = static_cast<double>(a.loads.view().shape()[0]);
  const double balance =
      sequences == 0 ? 0 : options_.balance * a.loss_scale / sequences;
  TESSERA_RETURN_IF_ERROR(ops().Run(
      op::RouteGradient{options_.router, a.logits.view(), a.experts.view(),
                        by_token, loads, balance, z_loss, exact}));
  return options_.dtype == statistics()
             ? absl::OkStatus()
             : ops().Run(op::Cast{exact, logits_gradient});
}

absl::Status MoeMlp::BackwardInput(const Partition& tokens,
                                   ConstTensorView y_gradient,
                                   TensorView x_gradient, MoeActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckHeld(a.held(), "BackwardInput"));
  TensorPool& pool = a.logits.pool();
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all,
                           AllTokens(tokens, y_gradient, all_y_));
  TESSERA_RETURN_IF_ERROR(
      Dispatch(all, /*by_slot=*/false, a, a.output_gradient));
  PooledTensor weights_gradient(pool), input_gradient(pool);
  TESSERA_RETURN_IF_ERROR(BackwardExperts(a, weights_gradient, input_gradient));
  // Releases pooled tensors early, so that interleaved passes can reuse them.
  PooledTensor returned_input(pool), returned(pool);
  TESSERA_RETURN_IF_ERROR(Return(input_gradient.view(), a, returned_input));
  input_gradient.Release();
  TESSERA_RETURN_IF_ERROR(Return(weights_gradient.view(), a, returned));
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum,
                           AllSums(tokens.size(), x_gradient));
  TESSERA_RETURN_IF_ERROR(Combine(returned_input.view(), tokens, a, sum));
  returned_input.Release();
  TESSERA_RETURN_IF_ERROR(BackwardRouter(tokens.size(), returned.view(), a));
  TESSERA_RETURN_IF_ERROR(ops().Run(
      op::Gemm{{.beta = 1}, a.logits_gradient.view(), router_.value(), sum}));
  TESSERA_RETURN_IF_ERROR(Distribute(tokens, sum, x_gradient));
  if (!shared_) return absl::OkStatus();
  PooledTensor common(pool);
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_shared,
                           common.Reserve(options_.dtype, x_gradient.shape()));
  TESSERA_RETURN_IF_ERROR(
      shared_->BackwardInput(tokens, y_gradient, of_shared, a.shared));
  return ops().Run(op::Add{of_shared, x_gradient});
}

absl::Status MoeMlp::BackwardWeight(const Partition& tokens,
                                    ConstTensorView y_gradient,
                                    ConstTensorView x, MoeActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(
      CheckHeld(a.output_gradient.held(), "BackwardWeight"));
  if (shared_) {
    TESSERA_RETURN_IF_ERROR(
        shared_->BackwardWeight(tokens, y_gradient, x, a.shared));
  }
  if (gate_up_.trainable()) TESSERA_RETURN_IF_ERROR(AddExpertGradients(a));
  if (router_.trainable()) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all,
                             AllTokens(tokens, x, all_x_));
    TESSERA_RETURN_IF_ERROR(ops().Run(op::Gemm{{.transpose_a = true, .beta = 1},
                                               a.logits_gradient.view(),
                                               all,
                                               router_.gradient()}));
    TESSERA_RETURN_IF_ERROR(AddBiasGradients(a));
  }
  a.Clear();
  return absl::OkStatus();
}

absl::Status MoeMlp::AddExpertGradients(const MoeActivations& a) {
  PooledTensor weighted(a.logits.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView product,
      weighted.ReserveVarying(options_.dtype, a.product.view().shape()));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView weights,
                           ListOf(ConstTensorView(a.weights.view())));
  TESSERA_RETURN_IF_ERROR(
      ops().Run(op::ScaleRows{weights, a.product.view(), product}));
  TESSERA_RETURN_IF_ERROR(
      AddProducts(a.plan, a.output_gradient.view(), product, down_));
  return AddProducts(a.plan, a.gate_up.view(), a.input.view(), gate_up_);
}

absl::Status MoeMlp::Backward(const Partition& tokens,
                              ConstTensorView y_gradient, ConstTensorView x,
                              TensorView x_gradient, MoeActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(BackwardInput(tokens, y_gradient, x_gradient, a));
  return BackwardWeight(tokens, y_gradient, x, a);
}

absl::Status MoeMlp::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  if (shared_) TESSERA_RETURN_IF_ERROR(shared_->FinishGradients());
  for (Matrices* matrices : {&gate_up_, &down_}) {
    if (matrices->adapter) {
      TESSERA_RETURN_IF_ERROR(matrices->adapter->FinishGradients());
    }
  }
  if (!router_.trainable()) return absl::OkStatus();
  if (logit_bias_) {
    TESSERA_RETURN_IF_ERROR(groups_.tensor.SumOver(logit_bias_->gradient()));
  }
  return groups_.tensor.SumOver(router_.gradient());
}

absl::Status MoeMlp::AddLoads(const MoeActivations& a) {
  new_loads_.push_back(a.counted);
  // Without padding the host has them already.
  constexpr size_t kMostNew = 64;
  if (options_.padded && new_loads_.size() < kMostNew) return absl::OkStatus();
  return Loads().status();
}

absl::StatusOr<std::span<const int64_t>> MoeMlp::Loads() {
  for (const Download& loads : new_loads_) {
    TESSERA_RETURN_IF_ERROR(AddTo(loads_, loads));
  }
  new_loads_.clear();
  return loads_;
}

}  // namespace tessera::tensor_parallel
