#include "tools/train/model/hidden_matrices.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/fused_partition.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

// The partition of a layer's parameter over tensor ranks: fused matrices,
// stacked, by rows; or a single matrix by columns.
struct Cut {
  tp::FusedPartition partition;
  bool by_rows = true;
};

absl::StatusOr<Cut> CutOf(const tp::Parameter& parameter,
                          const model_files::ModelConfig& model,
                          int64_t ranks) {
  const std::string& name = parameter.name();
  bool by_rows = absl::EndsWith(name, "qkv.weight") ||
                 absl::EndsWith(name, "gate_up.weight");
  std::vector<tp::FusedPart> parts;
  const model_files::LatentConfig& latent = model.latent;
  if (absl::EndsWith(name, ".latent_down.weight")) {
    by_rows = true;
    if (latent.query_rank > 0) {
      parts.push_back({.size = latent.query_rank, .replicated = true});
    }
    parts.push_back({.size = latent.kv_rank + latent.rope, .replicated = true});
  } else if (model.IsLatent() && absl::StrContains(name, ".attention.")) {
    by_rows = !absl::EndsWith(name, ".output.weight");
    parts = {tp::HeadsPart(model.heads, !by_rows ? latent.value
                                        : absl::EndsWith(name, ".kv_up.weight")
                                            ? latent.nope + latent.value
                                            : model.head_size)};
  } else if (absl::StrContains(name, ".attention.")) {
    TESSERA_ASSIGN_OR_RETURN(parts, tp::QkvParts(model.heads, model.kv_heads,
                                                 model.head_size, ranks));
  } else {
    parts = tp::GatedMlpParts(by_rows ? parameter.shape()[0] / 2 /
                                            parameter.matrices()
                                      : parameter.shape()[1]);
  }
  if (!by_rows) parts.resize(1);
  TESSERA_ASSIGN_OR_RETURN(tp::FusedPartition partition,
                           tp::FusedPartition::Create(parts, ranks));
  return Cut{std::move(partition), by_rows};
}

// Appends the fused matrices of an expert, or of the whole parameter, whose
// rows begin at `first`.
void AddMatrices(const Cut& cut, const tp::Parameter& parameter, int64_t first,
                 std::vector<HiddenMatrix>& matrices) {
  const int64_t columns = parameter.shape()[1];
  const int64_t rows = parameter.shape()[0] / parameter.matrices();
  int64_t begin = first;
  for (size_t part = 0; part < cut.partition.parts().size(); ++part) {
    const int64_t size = cut.by_rows ? cut.partition.parts()[part].size : rows;
    HiddenMatrix& matrix = matrices.emplace_back();
    matrix.whole = {{begin, begin + size}, {0, columns}};
    begin += size;
    for (int64_t rank = 0; rank < cut.partition.ranks(); ++rank) {
      const tp::IndexRange range =
          cut.partition.RangeOf(static_cast<int64_t>(part), rank);
      MatrixPart& held = matrix.parts.emplace_back(matrix.whole);
      if (cut.by_rows) {
        held.rows = {first + range.begin, first + range.end};
      } else {
        held.columns = range;
      }
    }
  }
}

// Sets `begin` of a matrix. Returns false if the parameter does not hold the
// part of this rank.
bool Locate(const tp::Parameter& parameter, int64_t rank,
            HiddenMatrix& matrix) {
  const MatrixPart& part = matrix.parts[static_cast<size_t>(rank)];
  if (part.elements() == 0) return true;
  if (parameter.columns() != part.columns) return false;
  int64_t rows = 0;
  for (const tp::ParameterRows& held : parameter.rows()) {
    if (held.range.begin <= part.rows.begin &&
        part.rows.end <= held.range.end) {
      matrix.begin =
          (rows + part.rows.begin - held.range.begin) * part.columns.size();
      return true;
    }
    rows += held.range.size();
  }
  return false;
}

}  // namespace

bool IsHiddenMatrix(std::string_view parameter) {
  return absl::EndsWith(parameter, ".attention.qkv.weight") ||
         absl::EndsWith(parameter, ".attention.output.weight") ||
         absl::EndsWith(parameter, ".latent_down.weight") ||
         absl::EndsWith(parameter, ".query_up.weight") ||
         absl::EndsWith(parameter, ".kv_up.weight") ||
         absl::EndsWith(parameter, ".gate_up.weight") ||
         absl::EndsWith(parameter, ".down.weight");
}

absl::StatusOr<std::vector<HiddenMatrix>> HiddenMatricesOf(
    const tp::Parameter& parameter, const model_files::ModelConfig& model,
    const MatrixRanks& ranks) {
  std::vector<HiddenMatrix> matrices;
  if (!IsHiddenMatrix(parameter.name())) return matrices;
  TESSERA_ASSIGN_OR_RETURN(const Cut cut,
                           CutOf(parameter, model, ranks.tensor_ranks));
  // Without experts, matrices() is 1.
  const bool is_divided = parameter.expert_parallel();
  const int64_t count =
      parameter.matrices() / (is_divided ? ranks.expert_ranks : 1);
  const int64_t first = is_divided ? ranks.expert_rank * count : 0;
  const int64_t rows = parameter.shape()[0] / parameter.matrices();
  for (int64_t expert = first; expert < first + count; ++expert) {
    AddMatrices(cut, parameter, expert * rows, matrices);
  }
  for (HiddenMatrix& matrix : matrices) {
    if (Locate(parameter, ranks.tensor_rank, matrix)) continue;
    const MatrixPart& part =
        matrix.parts[static_cast<size_t>(ranks.tensor_rank)];
    return absl::InternalError(absl::StrCat(
        "tensor rank ", ranks.tensor_rank, " of ", ranks.tensor_ranks,
        " does not hold rows ", part.rows.begin, " to ", part.rows.end,
        " and columns ", part.columns.begin, " to ", part.columns.end,
        " of parameter \"", parameter.name(),
        "\" as one part, which Muon expects"));
  }
  return matrices;
}

absl::Status AbortOnError(
    const absl::Status& status,
    std::initializer_list<collectives::Communicator*> groups) {
  if (status.ok()) return status;
  for (collectives::Communicator* const group : groups) {
    if (group == nullptr) continue;
    group->Abort(absl::StrCat("rank ", group->rank().value(), " of ",
                              group->name(), " failed: ", status.message()));
  }
  return status;
}

}  // namespace tessera::train
