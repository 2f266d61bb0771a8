#include "zero3/state/state_operations.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "collectives/reduction/combine.h"
#include "collectives/reduction/reduction.h"
#include "offload/optimizer/gradient_statistics.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3 {
namespace {

MemoryAccess Reads(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes),
          false};
}

MemoryAccess Writes(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes),
          true};
}

MemoryAccess Reads(const offload::ConstTypedSpan& span) {
  return Reads(span.data(), span.size_in_bytes());
}

MemoryAccess Writes(const offload::TypedSpan& span) {
  return Writes(span.data(), span.size_in_bytes());
}

void AddMoment(const offload::MomentSpan& moment, OperandChecker& check) {
  if (moment.size == 0) return;
  const auto scales = static_cast<int64_t>(moment.largest.size_bytes());
  const int64_t bytes =
      offload::MomentBytes(moment.format, moment.size).value_or(0);
  check.Accesses(Writes(moment.values, bytes - scales));
  if (scales > 0) check.Accesses(Writes(moment.largest.data(), scales));
}

// The rows that `count` elements from column `offset` on touch.
int64_t RowsOf(int64_t count, int64_t offset, int64_t width) {
  return (offset + count + width - 1) / width;
}

// OK if values and moments have matching types and sizes.
absl::Status CheckFactored(const offload::ConstTypedSpan& values,
                           int64_t offset, int64_t width,
                           const offload::ConstTypedSpan& rows,
                           const offload::ConstTypedSpan& columns) {
  TESSERA_RETURN_IF_ERROR(offload::CheckGradient(values));
  const DType dtype = StatisticsOf(values.dtype());
  if (width < 1 || offset < 0 || offset >= width ||
      rows.size() != RowsOf(values.size(), offset, width) ||
      (!columns.empty() && columns.size() != width)) {
    return absl::InvalidArgumentError(absl::StrCat(
        values.size(), " elements from column ", offset, " of ", width,
        ", with moments of ", rows.size(), " rows and ", columns.size(),
        " columns; give those of all rows that they touch, and of all or no "
        "columns"));
  }
  if (rows.dtype() != dtype || (!columns.empty() && columns.dtype() != dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("moments of ", DTypeName(rows.dtype()), " and ",
                     DTypeName(columns.dtype()), " for ",
                     DTypeName(values.dtype()), "; give ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

void MoveSources(const DeviceAddresses& at,
                 std::vector<std::span<const std::byte>>& kept,
                 op::Sources& sources) {
  for (std::span<const std::byte>& source : kept) source = at(source);
  sources = kept;
}

}  // namespace

namespace op {

absl::Status Add::Check(OperandChecker& check) const {
  if (!IsFloating(dtype) || !collectives::IsReducible(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sum of gradients of ", DTypeName(dtype),
                     "; give f64, f32, bf16 or f16"));
  }
  const int64_t bytes = count * SizeInBytes(dtype);
  check.Accesses(Reads(from, bytes)).Accesses(Writes(to, bytes));
  return absl::OkStatus();
}

absl::Status EncodeInt8::Check(OperandChecker& check) const {
  check.Accesses(ReadsFrom(values)).Accesses(WritesTo(encoded));
  return CheckInt8Sizes(dtype, values.size(), encoded);
}

absl::Status SumInt8::Check(OperandChecker& check) const {
  check.Accesses(WritesTo(values));
  for (const auto source : sources) {
    check.Accesses(ReadsFrom(source));
    TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(dtype, values.size(), source));
  }
  return absl::OkStatus();
}

void SumInt8::MoveTo(const DeviceAddresses& at) {
  MoveSources(at, kept, sources);
  values = at(values);
}

absl::Status SumInt8Encoded::Check(OperandChecker& check) const {
  const auto bytes = static_cast<size_t>(elements) * sizeof(float);
  TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(DType::kF32, bytes, encoded));
  check.Accesses(WritesTo(encoded));
  for (const auto source : sources) {
    check.Accesses(ReadsFrom(source));
    TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(DType::kF32, bytes, source));
  }
  return absl::OkStatus();
}

void SumInt8Encoded::MoveTo(const DeviceAddresses& at) {
  MoveSources(at, kept, sources);
  encoded = at(encoded);
}

absl::Status DecodeNf4::Check(OperandChecker& check) const {
  check.Accesses(ReadsFrom(encoded)).Accesses(WritesTo(values));
  if (codec == nullptr ||
      (codec->name() != "nf4" && codec->name() != "nf4_double")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the codec is ", codec == nullptr ? "missing" : codec->name(),
        "; give nf4 or nf4_double"));
  }
  const int64_t width = SizeInBytes(dtype);
  const auto bytes = static_cast<int64_t>(values.size());
  TESSERA_ASSIGN_OR_RETURN(const int64_t wanted,
                           codec->MaxEncodedBytes(dtype, bytes / width));
  if (static_cast<int64_t>(encoded.size()) == wanted && bytes % width == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(encoded.size(), " bytes of ", codec->name(), " for ", bytes,
                   " bytes of ", DTypeName(dtype), "; give ", wanted));
}

absl::Status Measure::Check(OperandChecker& check) const {
  check.Accesses(Reads(gradient)).Accesses(WritesTo(result));
  return offload::CheckGradient(gradient);
}

absl::Status OptimizerStep::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(
      offload::CheckRanges(std::span(&range, 1), prepared.moments),
      Annotate(_, prepared.name));
  check.Accesses(Writes(range.parameter)).Accesses(Reads(range.gradient));
  AddMoment(range.first, check);
  AddMoment(range.second, check);
  if (!range.copy.empty()) {
    check.Accesses(Writes(range.copy));
  }
  return absl::OkStatus();
}

absl::Status Scale::Check(OperandChecker& check) const {
  check.Accesses(Writes(values));
  if (values.dtype() != DType::kF32 && values.dtype() != DType::kF64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a scale of ", DTypeName(values.dtype()), "; give f32 or f64"));
  }
  if (copy.empty()) return absl::OkStatus();
  check.Accesses(Writes(copy));
  const bool is_half =
      copy.dtype() == DType::kBF16 || copy.dtype() == DType::kF16;
  if (is_half && values.dtype() == DType::kF32 &&
      copy.size() == values.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a copy of ", copy.size(), " ", DTypeName(copy.dtype()),
                   " of ", values.size(), " scaled ", DTypeName(values.dtype()),
                   "; give as many bf16 or f16 for f32"));
}

absl::Status SumSquares::Check(OperandChecker& check) const {
  check.Accesses(Reads(values)).Accesses(Writes(rows));
  if (!columns.empty()) {
    check.Accesses(Writes(columns));
  }
  return CheckFactored(values, offset, width, rows, columns);
}

absl::Status DivideByMean::Check(OperandChecker& check) const {
  check.Accesses(Reads(rows)).Accesses(Writes(columns));
  if (!rows.empty() && rows.dtype() == columns.dtype() &&
      (rows.dtype() == DType::kF32 || rows.dtype() == DType::kF64)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the mean of ", rows.size(), " rows of ", DTypeName(rows.dtype()),
      " for columns of ", DTypeName(columns.dtype()),
      "; give at least one row, and f32 or f64 for both"));
}

absl::Status FactoredUpdate::Check(OperandChecker& check) const {
  check.Accesses(Reads(values)).Accesses(Reads(rows)).Accesses(Writes(update));
  if (!columns.empty()) {
    check.Accesses(Reads(columns));
  }
  if (update.size() != values.size() || update.dtype() != rows.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an update of ", update.size(), " elements of ",
        DTypeName(update.dtype()), " for ", values.size(), " with moments of ",
        DTypeName(rows.dtype()), "; give equal ones"));
  }
  return CheckFactored(values, offset, width, rows, columns);
}

}  // namespace op

namespace {

// The kernels of the CPU, which have no shared state.
struct HostBackend {};

absl::Status Run(const op::Add& call) {
  const std::array<const void*, 2> sources = {call.to, call.from};
  void* const target = call.to;
  collectives::Combine(collectives::Combination::Partial(
                           collectives::Reduction::Sum(), call.dtype),
                       sources, std::span(&target, 1), call.count);
  return absl::OkStatus();
}

absl::Status Run(const op::EncodeInt8& call) {
  return EncodeInt8(call.dtype, call.values, call.encoded);
}

absl::Status Run(const op::SumInt8& call) {
  return SumInt8(call.sources, call.divisor, call.dtype, call.values);
}

absl::Status Run(const op::SumInt8Encoded& call) {
  return SumInt8Encoded(call.sources, call.elements, call.encoded);
}

absl::Status Run(const op::DecodeNf4& call) {
  return call.codec->Decode(call.dtype, call.encoded, call.values);
}

absl::Status Run(const op::Measure& call) {
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics statistics,
                           offload::MeasureGradient(call.gradient));
  std::memcpy(call.result.data(), &statistics, sizeof statistics);
  return absl::OkStatus();
}

absl::Status Run(const op::OptimizerStep& call) {
  return offload::RunRanges(call.prepared, std::span(&call.range, 1),
                            *call.pool);
}

absl::Status Run(const op::Scale& call) {
  ScaleValues(call.values.dtype(), call.factor, call.values.data(),
              call.values.size());
  if (call.copy.empty()) return absl::OkStatus();
  const auto bytes = [](const offload::TypedSpan& span) {
    return std::span(span.data(), static_cast<size_t>(span.size_in_bytes()));
  };
  return Convert(call.values.dtype(), bytes(call.values), call.copy.dtype(),
                 bytes(call.copy));
}

absl::Status Run(const op::SumSquares& call) {
  AddSquares(ElementsOf(call), call.row_weight, call.rows.data(),
             call.column_weight, call.columns.data(), call.pool);
  return absl::OkStatus();
}

absl::Status Run(const op::DivideByMean& call) {
  DivideByMean(call.rows.dtype(), call.rows.data(), call.rows.size(),
               call.least, call.columns.data(), call.columns.size());
  return absl::OkStatus();
}

absl::Status Run(const op::FactoredUpdate& call) {
  WriteUpdate(ElementsOf(call), call.rows.data(), call.columns.data(),
              call.least, call.factor, call.update.data(), call.pool);
  return absl::OkStatus();
}

using HostTable = KernelTable<HostBackend, StateOperations>;

const HostTable& HostKernels() {
  static const HostTable table = [] {
    HostTable result;
    StateOperations::ForEach([&]<typename Op>(std::type_identity<Op>) {
      result.Add<Op>([](HostBackend&, const Op& call) { return Run(call); });
    });
    return result;
  }();
  return table;
}

}  // namespace

std::shared_ptr<StateOps> HostStateOps(Queue& queue) {
  const auto create = [](Queue& on) {
    return std::make_shared<StateOps>(on, HostKernels(),
                                      std::make_shared<HostBackend>());
  };
  static const auto& host = *new std::shared_ptr<StateOps>(create(HostQueue()));
  return &queue == &HostQueue() ? host : create(queue);
}

std::shared_ptr<StateOps> DryStateOps() {
  return std::make_shared<StateOps>(HostQueue());
}

}  // namespace tessera::zero3
