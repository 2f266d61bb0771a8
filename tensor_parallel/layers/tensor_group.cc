#include "tensor_parallel/layers/tensor_group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

collectives::Buffer BufferOf(const TensorView& x) {
  return collectives::Buffer(x.data(), x.element_count(), x.dtype());
}
collectives::ConstBuffer BufferOf(const ConstTensorView& x) {
  return collectives::ConstBuffer(x.data(), x.element_count(), x.dtype());
}

// The number of elements of a token.
int64_t WidthOf(const ConstTensorView& x) {
  int64_t width = 1;
  for (int dim = 1; dim < x.rank(); ++dim) width *= x.shape()[dim];
  return width;
}

// The elements of each rank's rows; empty if all ranks have the same number.
std::vector<int64_t> UnevenCounts(std::span<const int64_t> rows,
                                  int64_t width) {
  if (std::adjacent_find(rows.begin(), rows.end(), std::not_equal_to<>()) ==
      rows.end()) {
    return {};
  }
  std::vector<int64_t> counts(rows.begin(), rows.end());
  for (int64_t& count : counts) count *= width;
  return counts;
}

absl::Status CheckTensor(const char* name, const ConstTensorView& x,
                         int64_t tokens) {
  if (x.rank() < 1 || !x.IsContiguous() || x.shape()[0] != tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", x.rank() < 1 ? 0 : x.shape()[0], " tokens",
                     x.IsContiguous() ? "" : " and gaps",
                     "; it should be contiguous, of ", tokens, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTokenRows(std::string_view name, const ConstTensorView& x,
                            int64_t tokens) {
  if (x.rank() > 0 && x.shape()[0] == tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has shape ", DimsToString(x.shape()),
                   "; it should have a row for each of ", tokens, " tokens"));
}

absl::Status CheckTokenNumbers(std::string_view name,
                               const ConstTensorView& numbers, DType dtype,
                               int64_t tokens) {
  if (numbers.dtype() == dtype && numbers.rank() == 1 &&
      numbers.shape()[0] == tokens && numbers.IsContiguous()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      DTypeName(numbers.dtype()), " ", DimsToString(numbers.shape()), " ", name,
      " for ", tokens, " tokens; give ", DTypeName(dtype),
      ", one for each, contiguous"));
}

absl::Status TensorGroup::CheckTokens(const Partition& tokens,
                                      ConstTensorView mine,
                                      ConstTensorView all) const {
  if (tokens.parts() != size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens are divided among ", tokens.parts(),
                     " ranks; the group has ", size()));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckTensor("the rank's tensor", mine, tokens.SizeOf(rank())));
  TESSERA_RETURN_IF_ERROR(CheckTensor("the whole tensor", all, tokens.size()));
  if (mine.dtype() == all.dtype() && WidthOf(mine) == WidthOf(all)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the rank's tensor has tokens of ", WidthOf(mine), " ",
                   DTypeName(mine.dtype()), ", the whole one of ", WidthOf(all),
                   " ", DTypeName(all.dtype())));
}

absl::StatusOr<Pending> TensorGroup::StartSumOver(TensorView x) const {
  if (size() == 1) return Pending();
  if (!x.IsContiguous()) {
    return absl::InvalidArgumentError("a tensor with gaps cannot be summed");
  }
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      communicator_->StartOn(
          queue(), collectives::AllReduceOf(BufferOf(x), BufferOf(x),
                                            collectives::Reduction::Sum())));
  return Pending(std::move(work), queue());
}

absl::Status TensorGroup::SumOver(TensorView x) const {
  if (size() == 1) return absl::OkStatus();
  if (!x.IsContiguous()) {
    return absl::InvalidArgumentError("a tensor with gaps cannot be summed");
  }
  return communicator_->RunOn(
      queue(), collectives::AllReduceOf(BufferOf(x), BufferOf(x),
                                        collectives::Reduction::Sum()));
}

absl::StatusOr<Pending> TensorGroup::StartGatherRows(
    std::span<const int64_t> rows, ConstTensorView mine, TensorView all) const {
  if (size() == 1) {
    TESSERA_RETURN_IF_ERROR(ops().Run(op::Copy{mine, all}));
    return Pending();
  }
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      communicator_->StartOn(queue(), collectives::AllGatherOf(
                                          BufferOf(mine), BufferOf(all),
                                          UnevenCounts(rows, WidthOf(mine)))));
  return Pending(std::move(work), queue());
}

absl::StatusOr<Pending> TensorGroup::StartGatherTokens(const Partition& tokens,
                                                       ConstTensorView mine,
                                                       TensorView all) const {
  TESSERA_RETURN_IF_ERROR(CheckTokens(tokens, mine, all));
  return StartGatherRows(tokens.Sizes(), mine, all);
}

absl::Status TensorGroup::GatherTokens(const Partition& tokens,
                                       ConstTensorView mine,
                                       TensorView all) const {
  TESSERA_ASSIGN_OR_RETURN(Pending pending,
                           StartGatherTokens(tokens, mine, all));
  return pending.Wait();
}

absl::StatusOr<Pending> TensorGroup::StartScatterRowSums(
    std::span<const int64_t> rows, ConstTensorView all, TensorView mine) const {
  if (size() == 1) {
    TESSERA_RETURN_IF_ERROR(ops().Run(op::Copy{all, mine}));
    return Pending();
  }
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      communicator_->StartOn(queue(), collectives::ReduceScatterOf(
                                          BufferOf(all), BufferOf(mine),
                                          collectives::Reduction::Sum(),
                                          UnevenCounts(rows, WidthOf(mine)))));
  return Pending(std::move(work), queue());
}

absl::StatusOr<Pending> TensorGroup::StartScatterSums(const Partition& tokens,
                                                      ConstTensorView all,
                                                      TensorView mine) const {
  TESSERA_RETURN_IF_ERROR(CheckTokens(tokens, mine, all));
  return StartScatterRowSums(tokens.Sizes(), all, mine);
}

absl::Status TensorGroup::ScatterSums(const Partition& tokens,
                                      ConstTensorView all,
                                      TensorView mine) const {
  TESSERA_ASSIGN_OR_RETURN(Pending pending,
                           StartScatterSums(tokens, all, mine));
  return pending.Wait();
}

}  // namespace tessera::tensor_parallel
