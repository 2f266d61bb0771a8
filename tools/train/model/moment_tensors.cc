#include "tools/train/model/moment_tensors.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensor_parallel/layers/lora.h"

namespace tessera::train {

namespace {

using tensor_parallel::IndexRange;
using tensor_parallel::ParameterRows;

// The rows of the matrices of one expert, or of a tensor without experts.
std::vector<int64_t> SizesOf(std::string_view name, int64_t rows,
                             bool of_experts,
                             const model_files::ModelConfig& model) {
  if (absl::StrContains(name, ".attention.qkv.")) {
    if (absl::EndsWith(name, tensor_parallel::kLoraA)) {
      return {rows / 3, rows / 3, rows / 3};
    }
    const int64_t keys = model.kv_heads * model.head_size;
    return {rows - 2 * keys, keys, keys};
  }
  const int64_t query_rank = model.latent.query_rank;
  if (absl::EndsWith(name, ".latent_down.weight") && query_rank > 0) {
    return {query_rank, rows - query_rank};
  }
  // An expert has one adapter for both.
  if (absl::StrContains(name, ".gate_up.") &&
      !(of_experts && tensor_parallel::IsLoraFactor(name))) {
    return {rows / 2, rows / 2};
  }
  return {rows};
}

IndexRange Overlap(const IndexRange& a, const IndexRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// The moments of columns of a matrix: held by every rank with elements of it,
// first by the one with its first row.
void AddColumns(const HeldWeight& weight, const IndexRange& matrix,
                int64_t begin, std::vector<ParameterRows>& moments) {
  bool is_held = false, is_first = false;
  for (const ParameterRows& held : weight.rows) {
    const IndexRange rows = Overlap(held.range, matrix);
    if (rows.size() == 0) continue;
    is_held = true;
    is_first |= held.primary && rows.begin == matrix.begin;
  }
  if (!is_held) return;
  moments.push_back(
      {{begin + weight.columns.begin, begin + weight.columns.end}, is_first});
}

}  // namespace

std::vector<IndexRange> MatricesOf(std::string_view name, int64_t rows,
                                   const model_files::ModelConfig& model) {
  const bool of_experts = absl::StrContains(name, ".experts.");
  const int64_t experts = of_experts ? model.mixture.experts : 1;
  const std::vector<int64_t> sizes =
      SizesOf(name, rows / experts, of_experts, model);
  std::vector<IndexRange> matrices;
  int64_t begin = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (const int64_t size : sizes) {
      matrices.push_back({begin, begin + size});
      begin += size;
    }
  }
  return matrices;
}

MomentTensor MomentsOf(const HeldWeight& weight,
                       std::span<const IndexRange> matrices) {
  const bool is_factored = weight.shape.size() == 2;
  const int64_t rows = weight.shape[0];
  const int64_t columns = is_factored ? weight.shape[1] : 0;
  MomentTensor moments = {
      .name = absl::StrCat(weight.name, kMomentsSuffix),
      .size = rows + static_cast<int64_t>(matrices.size()) * columns};
  if (weight.columns.size() > 0) {
    for (const ParameterRows& held : weight.rows) {
      if (held.range.size() == 0) continue;
      moments.rows.push_back(
          {held.range, held.primary && weight.columns.begin == 0});
    }
    for (size_t i = 0; is_factored && i < matrices.size(); ++i) {
      AddColumns(weight, matrices[i], rows + static_cast<int64_t>(i) * columns,
                 moments.rows);
    }
  }
  if (moments.rows.empty()) moments.rows.push_back({{0, 0}});
  return moments;
}

}  // namespace tessera::train
