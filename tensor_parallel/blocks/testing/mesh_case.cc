#include "tensor_parallel/blocks/testing/mesh_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "collectives/testing/run_ranks.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;

std::span<const std::byte> BytesOf(const ConstTensorView& x) {
  return {x.data(), static_cast<size_t>(x.size_in_bytes())};
}
std::span<std::byte> BytesOf(const TensorView& x) {
  return {x.data(), static_cast<size_t>(x.size_in_bytes())};
}

}  // namespace

SequenceLayout MeshCase::layout() const {
  return zigzag ? *SequenceLayout::Zigzag(length, cp)
                : *SequenceLayout::Contiguous(length, cp);
}

double MeshCase::tolerance() const {
  if (dtype == DType::kF64) return 1e-12;
  return dtype == DType::kF32 ? 1e-5 : 2e-2;
}

std::ostream& operator<<(std::ostream& os, const MeshCase& c) {
  return os << "tp " << c.tp << ", cp " << c.cp
            << (c.zigzag ? " zigzag, " : ", ")
            << (c.sequence_parallel ? "sequence parallel, " : "")
            << DTypeName(c.dtype) << ", " << c.sequences << " sequences of "
            << c.length;
}

std::vector<MeshCase> AllMeshCases() {
  std::vector<MeshCase> cases;
  for (const int64_t tp : {1, 2, 3, 4, 8}) {
    for (const int64_t cp : {1, 2, 4}) {
      if (tp * cp > 8) continue;
      for (const bool sequence_parallel : {false, true}) {
        for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
          const bool zigzag = (cases.size() / 3) % 2 == 0;
          cases.push_back({tp, cp, sequence_parallel, dtype, zigzag});
        }
      }
    }
  }
  cases.push_back({2, 2, true, DType::kF64, true, 0, 7});
  cases.push_back({2, 4, true, DType::kF64, true, 2, 1});
  cases.push_back({4, 2, false, DType::kF32, false, 3, 1});
  cases.push_back({2, 1, true, DType::kF64, false, 2, 0});
  return cases;
}

std::vector<absl::Status> RunMesh(const MeshCase& c, const MeshBody& body) {
  return collectives::RunRanks(
      c.tp * c.cp, [&](Communicator& world) -> absl::Status {
        const int64_t rank = world.rank().value();
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> tensor,
                                 world.Split(rank / c.tp, rank, "tensor"));
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> context,
                                 world.Split(rank % c.tp, rank, "context"));
        CpuOps ops({.threads = 1});
        const absl::Status status =
            body(TensorGroup(ops, tensor.get())
                     .WithSequenceParallel(c.sequence_parallel),
                 TensorGroup(ops, context.get()));
        if (!status.ok()) {
          tensor->Abort(status.message());
          context->Abort(status.message());
        }
        return status;
      });
}

std::vector<IndexRange> RowsOf(const MeshCase& c, int64_t tensor_rank,
                               int64_t context_rank, bool all_tokens) {
  std::vector<int64_t> rows;
  for (int64_t sequence = 0; sequence < c.sequences; ++sequence) {
    for (const int64_t position : c.layout().PositionsOf(context_rank)) {
      rows.push_back(sequence * c.length + position);
    }
  }
  const Partition tokens =
      *Partition::Balanced(static_cast<int64_t>(rows.size()), c.tp);
  const IndexRange mine = c.sequence_parallel && !all_tokens
                              ? tokens.RangeOf(tensor_rank)
                              : IndexRange{0, tokens.size()};
  std::vector<IndexRange> ranges;
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    ranges.push_back({row, row + 1});
  }
  return ranges;
}

absl::Status FillWeights(Ops& ops, std::span<Parameter* const> parameters,
                         DType dtype) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = *parameters[i];
    const double deviation = parameter.shape().size() == 1 ? 0.7 : 0.4;
    TESSERA_RETURN_IF_ERROR(
        parameter.FillNormal(ops, {.seed = 11, .stream = i}, deviation));
    if (parameter.dtype() == dtype) continue;
    TESSERA_ASSIGN_OR_RETURN(Tensor drawn,
                             ToHost(ops.queue(), parameter.value()));
    TESSERA_ASSIGN_OR_RETURN(Tensor narrow, CastTo(dtype, drawn.view()));
    TESSERA_ASSIGN_OR_RETURN(Tensor rounded,
                             CastTo(parameter.dtype(), narrow.view()));
    TESSERA_RETURN_IF_ERROR(ops.queue().Copy(
        BytesOf(ConstTensorView(rounded.view())), BytesOf(parameter.value())));
    TESSERA_RETURN_IF_ERROR(ops.queue().Synchronize());
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> CastTo(DType dtype, ConstTensorView values) {
  TESSERA_ASSIGN_OR_RETURN(
      Tensor cast,
      Tensor::Create(dtype, std::vector<int64_t>(values.shape().begin(),
                                                 values.shape().end())));
  TESSERA_RETURN_IF_ERROR(
      Convert(values.dtype(), BytesOf(values), dtype, BytesOf(cast.view())));
  return cast;
}

absl::StatusOr<Tensor> RandomRounded(DType dtype, DType narrow,
                                     std::span<const int64_t> shape,
                                     uint64_t stream) {
  TESSERA_ASSIGN_OR_RETURN(Tensor values, RandomTensor(narrow, shape, stream));
  return CastTo(dtype, values.view());
}

absl::StatusOr<Tensor> PartOf(const Parameter& parameter,
                              ConstTensorView whole) {
  std::vector<IndexRange> ranges;
  for (const ParameterRows& rows : parameter.rows()) {
    ranges.push_back(rows.range);
  }
  TESSERA_ASSIGN_OR_RETURN(Tensor rows, Take(whole, 0, ranges));
  if (whole.rank() == 1) return rows;
  const IndexRange columns = parameter.columns();
  return Take(rows.view(), 1, std::span(&columns, 1));
}

absl::Status ExpectNearPart(std::string_view what, ConstTensorView actual,
                            ConstTensorView expected, ConstTensorView whole,
                            double tolerance) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> a, ValuesOf(actual));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> e, ValuesOf(expected));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> w, ValuesOf(whole));
  if (a.size() != e.size()) {
    return absl::InternalError(absl::StrCat(what, " has ", a.size(),
                                            " elements instead of ", e.size()));
  }
  double largest = 0;
  for (const double value : w) largest = std::max(largest, std::abs(value));
  size_t worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    // A NaN counts as the largest error.
    if (!(std::abs(a[i] - e[i]) <= std::abs(a[worst] - e[worst]))) worst = i;
  }
  if (a.empty() || std::abs(a[worst] - e[worst]) <= tolerance * largest) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      what, "[", worst, "] is ", a[worst], " instead of ", e[worst],
      ", off by ", std::abs(a[worst] - e[worst]) / largest, " of the largest, ",
      largest));
}

absl::Status ExpectSameBits(std::string_view what, ConstTensorView actual,
                            ConstTensorView expected) {
  if (actual.shape() == expected.shape() &&
      actual.dtype() == expected.dtype() &&
      (actual.element_count() == 0 ||
       std::memcmp(actual.data(), expected.data(),
                   static_cast<size_t>(actual.size_in_bytes())) == 0)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(what, " has other bits"));
}

}  // namespace tessera::tensor_parallel
