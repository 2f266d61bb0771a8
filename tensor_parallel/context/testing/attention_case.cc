#include "tensor_parallel/context/testing/attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {

namespace {

struct Problem {
  const PlainTensor& query;
  const PlainTensor& key;
  const PlainTensor& value;
  const PlainTensor& gradient;
  double scale;
};

// The row of the softmax of a query that sees the keys of `seen`. Raises
// `max_score` to the largest score.
std::vector<double> Softmax(const Problem& problem, int64_t i, int64_t head,
                            int64_t kv, IndexRange seen, double& max_score) {
  std::vector<double> p(static_cast<size_t>(seen.end));
  double sum = 0;
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    double product = 0;
    for (int64_t d = 0; d < problem.query.size; ++d) {
      product += problem.query.at(i, head, d) * problem.key.at(j, kv, d);
    }
    max_score = std::max(max_score, product * problem.scale);
    sum += p[static_cast<size_t>(j)] = std::exp(product * problem.scale);
  }
  for (double& value : p) value /= sum;
  return p;
}

void AddQuery(const Problem& problem, int64_t i, int64_t head, IndexRange seen,
              PlainAttention& result) {
  const int64_t kv = head / (problem.query.heads / problem.key.heads);
  const std::vector<double> p = Softmax(
      problem, i, head, kv, seen, result.max_scores[static_cast<size_t>(head)]);
  std::vector<double> dp(p.size());
  double dot = 0;
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const auto at = static_cast<size_t>(j);
    for (int64_t d = 0; d < problem.query.size; ++d) {
      const double gradient = problem.gradient.at(i, head, d);
      result.output.at(i, head, d) += p[at] * problem.value.at(j, kv, d);
      result.value_gradient.at(j, kv, d) += p[at] * gradient;
      dp[at] += problem.value.at(j, kv, d) * gradient;
    }
    dot += p[at] * dp[at];
  }
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const auto at = static_cast<size_t>(j);
    const double ds = p[at] * (dp[at] - dot) * problem.scale;
    for (int64_t d = 0; d < problem.query.size; ++d) {
      result.query_gradient.at(i, head, d) += ds * problem.key.at(j, kv, d);
      result.key_gradient.at(j, kv, d) += ds * problem.query.at(i, head, d);
    }
  }
}

PlainTensor ZerosLike(const PlainTensor& x) {
  return PlainTensor(x.length, x.heads, x.size);
}

constexpr double kBase = 100;
constexpr double kNothing = -std::numeric_limits<double>::infinity();

absl::StatusOr<PlainTensor> ToPlain(const Tensor& tensor) {
  const Dims& shape = tensor.shape();
  PlainTensor plain(shape[0], shape[1], shape[2]);
  TESSERA_ASSIGN_OR_RETURN(plain.values, ValuesOf(tensor.view()));
  return plain;
}

// Plain attention of one sequence.
PlainAttention PlainOf(const AttentionCase& c, PlainTensor q, PlainTensor k,
                       const PlainTensor& v, const PlainTensor& g,
                       const std::vector<int64_t>& first) {
  if (c.rotary) {
    Rotate(kBase, false, q);
    Rotate(kBase, false, k);
  }
  PlainAttention plain = Attend(q, k, v, g, c.causal, first);
  if (c.rotary) {
    Rotate(kBase, true, plain.query_gradient);
    Rotate(kBase, true, plain.key_gradient);
  }
  return plain;
}

PlainTensor SequenceOf(const AttentionCase& c, const PlainTensor& all,
                       int64_t sequence) {
  PlainTensor one(c.length, all.heads, all.size);
  const auto begin =
      all.values.begin() + sequence * static_cast<int64_t>(one.values.size());
  std::copy_n(begin, one.values.size(), one.values.begin());
  return one;
}

void Append(const PlainTensor& one, PlainTensor& all) {
  all.length += one.length;
  all.values.insert(all.values.end(), one.values.begin(), one.values.end());
}

// The rows of a rank among those of all sequences.
std::vector<IndexRange> RowsOf(const AttentionCase& c, int64_t rank) {
  std::vector<IndexRange> rows;
  for (int64_t sequence = 0; sequence < c.sequences; ++sequence) {
    for (const IndexRange& range : c.layout().RangesOf(rank)) {
      rows.push_back(
          {sequence * c.length + range.begin, sequence * c.length + range.end});
    }
  }
  return rows;
}

// The tensors of one rank, [sequences * positions, ...].
struct Local {
  int64_t sequences, positions;
  Tensor query, key, value, gradient;
  Tensor output, log_sum_exp;
  Tensor query_gradient, key_gradient, value_gradient;
  std::vector<int64_t> tables = {};
  std::optional<ConstTensorView> first_keys = {};

  // [sequences, positions, ...].
  TensorView BySequence(Tensor& x) const {
    std::vector<int64_t> shape = {sequences, positions};
    shape.insert(shape.end(), x.shape().begin() + 1, x.shape().end());
    return *x.view().Reshape(shape);
  }
  ContextAttention::Inputs inputs() {
    return {BySequence(query), BySequence(key), BySequence(value), first_keys};
  }
  // The mask of the case, in this rank's tables.
  void SetMask(const AttentionCase& c, const ContextAttention& attention) {
    const std::vector<int64_t> first = c.first_positions();
    if (first.empty()) return;
    tables = attention.FirstKeys(first);
    first_keys = *ConstTensorView::Of(std::span<const int64_t>(tables),
                                      attention.FirstKeysShape(c.sequences));
  }
};

absl::StatusOr<Local> TakeLocal(const AttentionCase& c,
                                const WholeAttention& whole, int64_t rank) {
  const std::vector<IndexRange> mine = RowsOf(c, rank);
  const int64_t positions = c.layout().SizeOf(rank);
  const int64_t rows = c.sequences * positions;
  const int64_t wide[] = {rows, c.heads, c.head_size};
  const int64_t narrow[] = {rows, c.kv_heads, c.head_size};
  TESSERA_ASSIGN_OR_RETURN(Tensor q, Take(whole.query.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor k, Take(whole.key.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor v, Take(whole.value.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor g, Take(whole.gradient.view(), 0, mine));
  TESSERA_ASSIGN_OR_RETURN(Tensor output, RandomTensor(c.dtype, wide, 5));
  TESSERA_ASSIGN_OR_RETURN(
      Tensor statistics,
      RandomTensor(GradientDType(c.dtype), std::span(wide).first(2), 6));
  TESSERA_ASSIGN_OR_RETURN(Tensor dq, RandomTensor(c.dtype, wide, 7));
  TESSERA_ASSIGN_OR_RETURN(Tensor dk, RandomTensor(c.dtype, narrow, 8));
  TESSERA_ASSIGN_OR_RETURN(Tensor dv, RandomTensor(c.dtype, narrow, 9));
  return Local{
      c.sequences,   positions,     std::move(q),      std::move(k),
      std::move(v),  std::move(g),  std::move(output), std::move(statistics),
      std::move(dq), std::move(dk), std::move(dv)};
}

absl::Status RunOnce(ContextAttention& attention, Local& local) {
  const TensorView output = local.BySequence(local.output);
  const TensorView log_sum_exp = local.BySequence(local.log_sum_exp);
  TESSERA_RETURN_IF_ERROR(
      attention.Forward(local.inputs(), output, log_sum_exp));
  return attention.Backward(local.inputs(), output, log_sum_exp,
                            local.BySequence(local.gradient),
                            {local.BySequence(local.query_gradient),
                             local.BySequence(local.key_gradient),
                             local.BySequence(local.value_gradient)});
}

absl::Status CheckAgainst(std::string_view what, const AttentionCase& c,
                          int64_t rank, const Tensor& got,
                          const PlainTensor& plain) {
  TESSERA_ASSIGN_OR_RETURN(
      const ConstTensorView whole,
      ConstTensorView::Of(std::span<const double>(plain.values),
                          {{plain.length, plain.heads, plain.size}}));
  TESSERA_ASSIGN_OR_RETURN(Tensor want, Take(whole, 0, RowsOf(c, rank)));
  return ExpectNear(what, got.view(), want.view(), c.tolerance());
}

// The sum over all ranks of output times gradient.
absl::StatusOr<double> Loss(collectives::Communicator& communicator,
                            ContextAttention& attention, Local& local) {
  TESSERA_RETURN_IF_ERROR(
      attention.Forward(local.inputs(), local.BySequence(local.output),
                        local.BySequence(local.log_sum_exp)));
  TESSERA_ASSIGN_OR_RETURN(const auto output,
                           local.output.view().AsSpan<double>());
  TESSERA_ASSIGN_OR_RETURN(const auto gradient,
                           local.gradient.view().AsSpan<double>());
  double sum = 0;
  for (size_t i = 0; i < output.size(); ++i) sum += output[i] * gradient[i];
  TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
      collectives::Buffer(std::span(&sum, 1)), collectives::Reduction::Sum()));
  return sum;
}

// Perturbs every element of `x` of every rank in turn; all ranks take part in
// each evaluation.
absl::Status CompareDifferences(collectives::Communicator& communicator,
                                const AttentionCase& c,
                                ContextAttention& attention, Local& local,
                                Tensor& x, const Tensor& gradient) {
  constexpr double kStep = 1e-5;
  const int64_t width = x.shape()[1] * x.shape()[2];
  TESSERA_ASSIGN_OR_RETURN(const auto values, x.view().AsSpan<double>());
  TESSERA_ASSIGN_OR_RETURN(const auto given, gradient.view().AsSpan<double>());
  absl::Status result;
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    const bool mine = rank == communicator.rank().value();
    const int64_t count = c.layout().SizeOf(rank) * width;
    for (int64_t i = 0; i < count; ++i) {
      double* const moved = mine ? &values[static_cast<size_t>(i)] : nullptr;
      const double before = mine ? *moved : 0;
      if (mine) *moved = before + kStep;
      TESSERA_ASSIGN_OR_RETURN(const double up,
                               Loss(communicator, attention, local));
      if (mine) *moved = before - kStep;
      TESSERA_ASSIGN_OR_RETURN(const double down,
                               Loss(communicator, attention, local));
      if (!mine) continue;
      *moved = before;
      const double want = (up - down) / (2 * kStep);
      const double got = given[static_cast<size_t>(i)];
      // The comparison also rejects NaN.
      if (std::abs(got - want) <= 1e-7) continue;
      result.Update(absl::InternalError(absl::StrCat(
          "gradient ", i, " is ", got, ", differences give ", want)));
    }
  }
  return result;
}

// A collective: the scores of all ranks against those of whole sequences.
absl::Status CheckMaxScores(collectives::Communicator& communicator,
                            const AttentionCase& c, ContextAttention& attention,
                            Local& local, std::span<const double> want) {
  const DType dtype = GradientDType(c.dtype);
  TESSERA_ASSIGN_OR_RETURN(Tensor scores, Tensor::Create(dtype, {{c.heads}}));
  TESSERA_RETURN_IF_ERROR(Fill(scores.view(), kNothing));
  ContextAttention::Inputs inputs = local.inputs();
  inputs.max_scores = scores.view();
  TESSERA_RETURN_IF_ERROR(
      attention.Forward(inputs, local.BySequence(local.output),
                        local.BySequence(local.log_sum_exp)));
  TESSERA_ASSIGN_OR_RETURN(std::vector<double> got, ValuesOf(scores.view()));
  TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
      collectives::Buffer(std::span(got)), collectives::Reduction::Max()));
  for (size_t h = 0; h < got.size(); ++h) {
    // The comparison also rejects NaN.
    if (got[h] == want[h] || std::abs(got[h] - want[h]) <= c.tolerance()) {
      continue;
    }
    return absl::InternalError(absl::StrCat("the largest score of head ", h,
                                            " is ", got[h], "; it should be ",
                                            want[h]));
  }
  return absl::OkStatus();
}

}  // namespace

PlainAttention Attend(const PlainTensor& query, const PlainTensor& key,
                      const PlainTensor& value, const PlainTensor& gradient,
                      bool causal, const std::vector<int64_t>& first) {
  const Problem problem = {query, key, value, gradient,
                           1 / std::sqrt(static_cast<double>(query.size))};
  PlainAttention result = {
      ZerosLike(query), ZerosLike(query), ZerosLike(key), ZerosLike(value),
      std::vector<double>(static_cast<size_t>(query.heads), kNothing)};
  for (int64_t head = 0; head < query.heads; ++head) {
    for (int64_t i = 0; i < query.length; ++i) {
      AddQuery(problem, i, head,
               {first.empty() ? 0 : first[static_cast<size_t>(i)],
                causal ? i + 1 : query.length},
               result);
    }
  }
  return result;
}

void Rotate(double base, bool back, PlainTensor& x) {
  const int64_t half = x.size / 2;
  for (int64_t p = 0; p < x.length; ++p) {
    for (int64_t head = 0; head < x.heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const double exponent =
            -2 * static_cast<double>(i) / static_cast<double>(x.size);
        const double angle =
            (back ? -1 : 1) * static_cast<double>(p) * std::pow(base, exponent);
        const double a = x.at(p, head, i);
        const double b = x.at(p, head, i + half);
        x.at(p, head, i) = a * std::cos(angle) - b * std::sin(angle);
        x.at(p, head, i + half) = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
}

std::vector<int64_t> AttentionCase::first_positions() const {
  std::vector<int64_t> first;
  if (window == 0 && !documents) return first;
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t begin = 0;
    for (int64_t p = 0; p < length; ++p) {
      // Documents of 1, 2, ... tokens, with different boundaries in each
      // sequence.
      if (documents && (p * p + 3 * s) % 7 == 1) begin = p;
      first.push_back(std::max(
          begin, window == 0 ? 0 : std::max<int64_t>(0, p + 1 - window)));
    }
  }
  return first;
}

double AttentionCase::tolerance() const {
  if (dtype == DType::kF64) return 1e-12;
  return dtype == DType::kF32 ? 1e-5 : 3e-2;
}

SequenceLayout AttentionCase::layout() const {
  return zigzag ? *SequenceLayout::Zigzag(length, ranks)
                : *SequenceLayout::Contiguous(length, ranks);
}

ContextAttentionOptions AttentionCase::options() const {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_size = head_size,
          .causal = causal,
          .dtype = dtype};
}

std::ostream& operator<<(std::ostream& os, const AttentionCase& c) {
  return os << c.ranks << " ranks, " << c.length << " positions, " << c.heads
            << " heads, " << c.kv_heads << " kv, "
            << (c.zigzag ? "zigzag" : "contiguous")
            << (c.causal ? ", causal, " : ", ") << (c.rotary ? "rotary, " : "")
            << DTypeName(c.dtype) << ", " << c.sequences << " sequences"
            << (c.window > 0 ? absl::StrCat(", window of ", c.window) : "")
            << (c.documents ? ", documents" : "");
}

std::vector<AttentionCase> AllAttentionCases() {
  std::vector<AttentionCase> cases;
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const int64_t length : {0, 5, 23, 48}) {
      for (const bool zigzag : {false, true}) {
        cases.push_back({ranks, length, zigzag, true, DType::kF64});
        cases.push_back({ranks, length, zigzag, false, DType::kF64});
        if (length > 5) {
          cases.push_back({ranks, length, zigzag, true, DType::kF32});
          cases.push_back({ranks, length, zigzag, true, DType::kBF16});
        }
        cases.push_back({.ranks = ranks,
                         .length = length,
                         .zigzag = zigzag,
                         .dtype = DType::kF64,
                         .rotary = true});
      }
    }
    for (const bool zigzag : {false, true}) {
      for (const int64_t window : {0, 1, 9, 100}) {
        for (const bool documents : {false, true}) {
          if (window == 0 && !documents) continue;
          cases.push_back(
              {.ranks = ranks,
               .length = 23,
               .zigzag = zigzag,
               .causal = window != 100,
               .dtype = window == 9 && documents ? DType::kBF16 : DType::kF64,
               .sequences = 1 + window % 3,
               .window = window,
               .documents = documents});
        }
      }
      for (const int64_t sequences : {0, 3}) {
        for (const DType dtype : {DType::kF64, DType::kBF16}) {
          cases.push_back({.ranks = ranks,
                           .length = 23,
                           .zigzag = zigzag,
                           .dtype = dtype,
                           .rotary = dtype == DType::kF64,
                           .sequences = sequences});
        }
      }
    }
  }
  return cases;
}

absl::StatusOr<WholeAttention> MakeWholeAttention(const AttentionCase& c) {
  const int64_t rows = c.sequences * c.length;
  const int64_t wide[] = {rows, c.heads, c.head_size};
  const int64_t narrow[] = {rows, c.kv_heads, c.head_size};
  TESSERA_ASSIGN_OR_RETURN(Tensor query, RandomTensor(c.dtype, wide, 1));
  TESSERA_ASSIGN_OR_RETURN(Tensor key, RandomTensor(c.dtype, narrow, 2));
  TESSERA_ASSIGN_OR_RETURN(Tensor value, RandomTensor(c.dtype, narrow, 3));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient, RandomTensor(c.dtype, wide, 4));
  TESSERA_ASSIGN_OR_RETURN(const PlainTensor q, ToPlain(query));
  TESSERA_ASSIGN_OR_RETURN(const PlainTensor k, ToPlain(key));
  TESSERA_ASSIGN_OR_RETURN(const PlainTensor v, ToPlain(value));
  TESSERA_ASSIGN_OR_RETURN(const PlainTensor g, ToPlain(gradient));
  PlainAttention plain = {{0, c.heads, c.head_size},
                          {0, c.heads, c.head_size},
                          {0, c.kv_heads, c.head_size},
                          {0, c.kv_heads, c.head_size},
                          std::vector<double>(c.heads, kNothing)};
  const std::vector<int64_t> all_first = c.first_positions();
  for (int64_t i = 0; i < c.sequences; ++i) {
    std::vector<int64_t> first;
    if (!all_first.empty()) {
      first.assign(all_first.begin() + i * c.length,
                   all_first.begin() + (i + 1) * c.length);
    }
    const PlainAttention one =
        PlainOf(c, SequenceOf(c, q, i), SequenceOf(c, k, i),
                SequenceOf(c, v, i), SequenceOf(c, g, i), first);
    Append(one.output, plain.output);
    Append(one.query_gradient, plain.query_gradient);
    Append(one.key_gradient, plain.key_gradient);
    Append(one.value_gradient, plain.value_gradient);
    for (size_t h = 0; h < one.max_scores.size(); ++h) {
      plain.max_scores[h] = std::max(plain.max_scores[h], one.max_scores[h]);
    }
  }
  return WholeAttention{std::move(query), std::move(key), std::move(value),
                        std::move(gradient), std::move(plain)};
}

absl::Status CheckAttention(collectives::Communicator& communicator,
                            const AttentionCase& c, const WholeAttention& whole,
                            const AttentionMaker& make) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops, &communicator);
  const int64_t rank = group.rank();
  TESSERA_ASSIGN_OR_RETURN(const auto attention, make(group, c));
  TESSERA_ASSIGN_OR_RETURN(Local local, TakeLocal(c, whole, rank));
  local.SetMask(c, *attention);
  const std::vector<int64_t> positions = attention->layout().PositionsOf(rank);
  const auto rotate = [&](bool inverse, Tensor& x) {
    if (!c.rotary) return absl::OkStatus();
    const TestTensor table = RotaryTableOf(
        RotaryFrequencies{.base = kBase}.Of(c.head_size, c.length), positions,
        x.dtype());
    return ops.Run(op::Rotate{inverse, table.view(), x.view()});
  };
  TESSERA_RETURN_IF_ERROR(rotate(false, local.query));
  TESSERA_RETURN_IF_ERROR(rotate(false, local.key));
  // Runs twice, to verify that the first run leaves no state behind.
  TESSERA_RETURN_IF_ERROR(RunOnce(*attention, local));
  TESSERA_RETURN_IF_ERROR(RunOnce(*attention, local));
  TESSERA_RETURN_IF_ERROR(CheckMaxScores(communicator, c, *attention, local,
                                         whole.plain.max_scores));
  TESSERA_RETURN_IF_ERROR(rotate(true, local.query_gradient));
  TESSERA_RETURN_IF_ERROR(rotate(true, local.key_gradient));
  const PlainAttention& plain = whole.plain;
  TESSERA_RETURN_IF_ERROR(
      CheckAgainst("output", c, rank, local.output, plain.output));
  TESSERA_RETURN_IF_ERROR(CheckAgainst(
      "query gradient", c, rank, local.query_gradient, plain.query_gradient));
  TESSERA_RETURN_IF_ERROR(CheckAgainst("key gradient", c, rank,
                                       local.key_gradient, plain.key_gradient));
  return CheckAgainst("value gradient", c, rank, local.value_gradient,
                      plain.value_gradient);
}

absl::Status CheckDifferences(collectives::Communicator& communicator,
                              const AttentionCase& c,
                              const AttentionMaker& make) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops, &communicator);
  TESSERA_ASSIGN_OR_RETURN(const WholeAttention whole, MakeWholeAttention(c));
  TESSERA_ASSIGN_OR_RETURN(const auto attention, make(group, c));
  TESSERA_ASSIGN_OR_RETURN(Local local, TakeLocal(c, whole, group.rank()));
  local.SetMask(c, *attention);
  TESSERA_RETURN_IF_ERROR(RunOnce(*attention, local));
  // Runs all comparisons even after a failure, because they are collectives.
  absl::Status status = CompareDifferences(communicator, c, *attention, local,
                                           local.query, local.query_gradient);
  status.Update(CompareDifferences(communicator, c, *attention, local,
                                   local.key, local.key_gradient));
  status.Update(CompareDifferences(communicator, c, *attention, local,
                                   local.value, local.value_gradient));
  return status;
}

}  // namespace tessera::tensor_parallel
