#include "offload/optimizer/parameter_range.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"

namespace tessera::offload {

namespace {

constexpr int64_t kLeastBlock = 64;
constexpr int64_t kLargestBlock = 2048;

int64_t ValueBytes(MomentType type) {
  switch (type) {
    case MomentType::kF64:
      return 8;
    case MomentType::kF32:
      return 4;
    case MomentType::kBF16:
      return 2;
    case MomentType::kBlockwise8:
      return 1;
  }
  return 0;
}

int64_t Blocks(const MomentFormat& format, int64_t elements) {
  if (format.type != MomentType::kBlockwise8) return 0;
  return elements / format.block + (elements % format.block != 0 ? 1 : 0);
}

template <typename T>
MomentSpan OfTyped(MomentFormat format, std::span<T> values) {
  return {.format = format,
          .size = static_cast<int64_t>(values.size()),
          .values = reinterpret_cast<std::byte*>(values.data())};
}

}  // namespace

std::string MomentFormat::ToString() const {
  switch (type) {
    case MomentType::kF64:
      return "f64";
    case MomentType::kF32:
      return "f32";
    case MomentType::kBF16:
      return "bf16";
    case MomentType::kBlockwise8:
      return absl::StrCat("8-bit/", block);
  }
  return "invalid";
}

absl::StatusOr<MomentFormat> ParseMomentFormat(std::string_view name) {
  if (name == "f32") return MomentFormat::F32();
  if (name == "bf16") return MomentFormat::BF16();
  if (name == "int8") return MomentFormat::Blockwise8();
  return absl::InvalidArgumentError(
      absl::StrCat("moments \"", absl::CHexEscape(name.substr(0, 40)),
                   "\": must be one of f32, bf16, int8"));
}

absl::Status CheckMomentFormat(const MomentFormat& format) {
  if (ValueBytes(format.type) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("moment type ", static_cast<int>(format.type),
                     " is invalid; use F64, F32, BF16 or Blockwise8"));
  }
  const int64_t block = format.block;
  const bool valid = format.type == MomentType::kBlockwise8
                         ? block >= kLeastBlock && block <= kLargestBlock &&
                               (block & (block - 1)) == 0
                         : block == 0;
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("moments of type ", format.ToString(), " with a block of ",
                   block, "; 8-bit moments have a power of two from ",
                   kLeastBlock, " to ", kLargestBlock, ", others have 0"));
}

absl::StatusOr<int64_t> MomentBytes(const MomentFormat& format,
                                    int64_t elements) {
  TESSERA_RETURN_IF_ERROR(CheckMomentFormat(format));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 8;
  if (elements < 0 || elements > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("moments of ", elements, " elements; give 0 to ", kMost));
  }
  return elements * ValueBytes(format.type) + 4 * Blocks(format, elements);
}

MomentSpan MomentSpan::Of(std::span<float> values) {
  return OfTyped(MomentFormat::F32(), values);
}
MomentSpan MomentSpan::Of(std::span<double> values) {
  return OfTyped(MomentFormat::F64(), values);
}
MomentSpan MomentSpan::Of(std::span<tessera::BF16> values) {
  return OfTyped(MomentFormat::BF16(), values);
}

absl::StatusOr<MomentSpan> MomentSpan::Over(const MomentFormat& format,
                                            int64_t elements,
                                            std::span<std::byte> storage) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, MomentBytes(format, elements));
  if (static_cast<int64_t>(storage.size()) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(elements, " moments of type ", format.ToString(), " take ",
                     bytes, " bytes, and the storage has ", storage.size()));
  }
  const int64_t blocks = Blocks(format, elements);
  const int64_t alignment = blocks > 0 ? 4 : ValueBytes(format.type);
  if (reinterpret_cast<uintptr_t>(storage.data()) %
          static_cast<uintptr_t>(alignment) !=
      0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the storage of moments of type ", format.ToString(),
        " starts at an address that is not a multiple of ", alignment));
  }
  return MomentSpan{
      .format = format,
      .size = elements,
      .values = storage.empty() ? nullptr : storage.data() + 4 * blocks,
      .largest = {reinterpret_cast<float*>(storage.data()),
                  static_cast<size_t>(blocks)}};
}

absl::StatusOr<MomentSpan> MomentSpan::Piece(int64_t begin,
                                             int64_t count) const {
  if (begin < 0 || count < 0 || begin > size || count > size - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of ", count, " moments from ", begin, " on, of ",
                     size, "; keep it within"));
  }
  TESSERA_RETURN_IF_ERROR(CheckMomentFormat(format));
  TESSERA_RETURN_IF_ERROR(CheckBlockBoundary(format, begin));
  MomentSpan piece = {.format = format, .size = count};
  if (values != nullptr)
    piece.values = values + begin * ValueBytes(format.type);
  if (format.type == MomentType::kBlockwise8) {
    piece.largest = largest.subspan(static_cast<size_t>(begin / format.block),
                                    static_cast<size_t>(Blocks(format, count)));
  }
  return piece;
}

absl::Status CheckBlockBoundary(const MomentFormat& format, int64_t begin) {
  if (format.type != MomentType::kBlockwise8 || begin % format.block == 0) {
    return absl::OkStatus();
  }
  const int64_t below = begin / format.block * format.block;
  return absl::InvalidArgumentError(absl::StrCat(
      "element ", begin, " is inside a block of ", format.block,
      " 8-bit moments, which share a scale; the nearest boundaries are ", below,
      " and ", below + format.block));
}

namespace {

constexpr size_t kLongestName = 80;

absl::Status Refuse(std::string_view what, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, " ", why));
}

absl::Status CheckType(const ParameterRange& range) {
  const DType parameter = range.parameter.dtype();
  const DType gradient = range.gradient.dtype();
  if (parameter == DType::kF64) {
    if (gradient == DType::kF64) return absl::OkStatus();
    return Refuse("gradient", absl::StrCat("is ", DTypeName(gradient),
                                           "; f64 parameters take f64"));
  }
  if (parameter != DType::kF32) {
    return Refuse("parameter",
                  absl::StrCat("is ", DTypeName(parameter),
                               "; keep f32 master weights (or f64), and give "
                               "the 16-bit weights as the copy"));
  }
  if (gradient == DType::kF32 || gradient == DType::kBF16 ||
      gradient == DType::kF16) {
    return absl::OkStatus();
  }
  return Refuse("gradient", absl::StrCat("is ", DTypeName(gradient),
                                         "; f32 parameters take f32, bf16 or "
                                         "f16"));
}

absl::Status CheckSize(std::string_view what, int64_t size,
                       const ParameterRange& range) {
  if (size == range.parameter.size()) return absl::OkStatus();
  return Refuse(what, absl::StrCat("has ", size, " elements, the parameter ",
                                   range.parameter.size()));
}

// `data` may be null if there are no bytes.
absl::Status CheckData(std::string_view what, const void* data, int64_t bytes,
                       int64_t alignment) {
  if (bytes > 0 && data == nullptr) return Refuse(what, "has no data");
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (bytes <= 0 || address % static_cast<uintptr_t>(alignment) == 0) {
    return absl::OkStatus();
  }
  return Refuse(what,
                absl::StrCat("starts at an address that is not a multiple of ",
                             alignment, ", the size of its elements"));
}

template <typename Byte>
absl::Status CheckSpan(std::string_view what, const BasicTypedSpan<Byte>& span,
                       const ParameterRange& range) {
  TESSERA_RETURN_IF_ERROR(CheckSize(what, span.size(), range));
  return CheckData(what, span.data(), span.size_in_bytes(),
                   SizeInBytes(span.dtype()));
}

absl::Status CheckMoment(std::string_view what, const MomentSpan& moment,
                         const ParameterRange& range) {
  TESSERA_RETURN_IF_ERROR(CheckSize(what, moment.size, range));
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                           MomentBytes(moment.format, moment.size),
                           Annotate(_, what));
  const bool is_f64 = moment.format.type == MomentType::kF64;
  if (is_f64 != (range.parameter.dtype() == DType::kF64)) {
    return Refuse(what,
                  absl::StrCat("is ", moment.format.ToString(),
                               "; f64 parameters take f64 moments, f32 ones "
                               "f32, bf16 or 8-bit"));
  }
  const auto scales = static_cast<int64_t>(moment.largest.size_bytes());
  const int64_t blocks =
      moment.format.type == MomentType::kBlockwise8 ? bytes - moment.size : 0;
  if (scales != blocks) {
    return Refuse(what,
                  absl::StrCat("has ", scales / 4, " scales of blocks, ",
                               moment.size, " elements of type ",
                               moment.format.ToString(), " have ", blocks / 4));
  }
  if (moment.size == 0) return absl::OkStatus();
  return CheckData(what, moment.values, bytes - blocks,
                   (bytes - blocks) / moment.size);
}

absl::Status CheckPlace(const ParameterRange& range,
                        const MomentFormat& format) {
  const int64_t size = range.parameter.size();
  if (range.begin < 0 || range.whole < 0 ||
      (range.whole > 0 &&
       (range.begin > range.whole || size > range.whole - range.begin))) {
    return Refuse(
        "range",
        absl::StrCat("of ", size, " elements from ", range.begin,
                     " on does not lie in the whole of ", range.whole));
  }
  TESSERA_RETURN_IF_ERROR(CheckBlockBoundary(format, range.begin),
                          Annotate(_, "begin"));
  if (range.whole == 0 || range.begin + size == range.whole) {
    return absl::OkStatus();
  }
  return Annotate(CheckBlockBoundary(format, range.begin + size), "end");
}

absl::Status CheckRange(const ParameterRange& range, int moments) {
  TESSERA_RETURN_IF_ERROR(CheckType(range));
  TESSERA_RETURN_IF_ERROR(CheckSpan("parameter", range.parameter, range));
  TESSERA_RETURN_IF_ERROR(CheckSpan("gradient", range.gradient, range));
  const MomentSpan* const spans[] = {&range.first, &range.second};
  constexpr std::string_view kNames[] = {"first moment", "second moment"};
  for (int i = 0; i < moments; ++i) {
    TESSERA_RETURN_IF_ERROR(CheckMoment(kNames[i], *spans[i], range));
    TESSERA_RETURN_IF_ERROR(CheckPlace(range, spans[i]->format),
                            Annotate(_, kNames[i]));
  }
  if (moments == 0) TESSERA_RETURN_IF_ERROR(CheckPlace(range, {}));
  if (range.copy.empty()) return absl::OkStatus();
  const DType copy = range.copy.dtype();
  if (range.parameter.dtype() != DType::kF32 ||
      (copy != DType::kBF16 && copy != DType::kF16)) {
    return Refuse("copy", absl::StrCat("is ", DTypeName(copy),
                                       "; f32 parameters are copied to bf16 or "
                                       "f16, f64 ones not at all"));
  }
  return CheckSpan("copy", range.copy, range);
}

absl::Status CheckUndo(const ParameterRange& range, int moments) {
  const auto bytes = static_cast<int64_t>(range.undo.size());
  if (bytes == 0 || bytes == UndoBytes(range, moments)) return absl::OkStatus();
  return Refuse("undo", absl::StrCat("has ", bytes,
                                     " bytes; the parameter and "
                                     "its moments have ",
                                     UndoBytes(range, moments)));
}

// "range 3 (layers.0.weight)".
std::string Title(size_t index, const ParameterRange& range) {
  if (range.name.empty()) return absl::StrCat("range ", index);
  const bool is_long = range.name.size() > kLongestName;
  return absl::StrCat("range ", index, " (", range.name.substr(0, kLongestName),
                      is_long ? "..." : "", ")");
}

struct Extent {
  uintptr_t begin;
  uintptr_t end;
  bool written;
  size_t range;
  std::string_view what;
};

void AddExtents(const ParameterRange& range, size_t index, int moments,
                std::vector<Extent>& extents) {
  const auto add = [&](std::string_view what, const void* data, size_t bytes,
                       bool written) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    if (bytes > 0) {
      extents.push_back({begin, begin + bytes, written, index, what});
    }
  };
  const auto add_span = [&](std::string_view what, const auto& span,
                            bool written) {
    add(what, span.data(), static_cast<size_t>(span.size_in_bytes()), written);
  };
  add_span("parameter", range.parameter, true);
  add_span("gradient", range.gradient, false);
  add_span("copy", range.copy, true);
  add("undo", range.undo.data(), range.undo.size(), true);
  const MomentSpan* const spans[] = {&range.first, &range.second};
  constexpr std::string_view kNames[] = {"first moment", "second moment"};
  for (int i = 0; i < moments; ++i) {
    const MomentSpan& moment = *spans[i];
    const int64_t bytes = MomentBytes(moment.format, moment.size).value_or(0) -
                          static_cast<int64_t>(moment.largest.size_bytes());
    add(kNames[i], moment.values, static_cast<size_t>(bytes), true);
    add(kNames[i], moment.largest.data(), moment.largest.size_bytes(), true);
  }
}

absl::Status CheckOverlaps(std::span<const ParameterRange> ranges,
                           int moments) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!ranges[i].frozen) AddExtents(ranges[i], i, moments, extents);
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  // The extents so far that reach farthest.
  const Extent* any = nullptr;
  const Extent* written = nullptr;
  for (const Extent& extent : extents) {
    const Extent* const before = extent.written ? any : written;
    if (before != nullptr && before->end > extent.begin) {
      return Refuse(absl::StrCat("the ", extent.what, " of ",
                                 Title(extent.range, ranges[extent.range])),
                    absl::StrCat("overlaps the ", before->what, " of ",
                                 Title(before->range, ranges[before->range]),
                                 "; written memory must not overlap"));
    }
    if (any == nullptr || extent.end > any->end) any = &extent;
    if (extent.written && (written == nullptr || extent.end > written->end)) {
      written = &extent;
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t UndoBytes(const ParameterRange& range, int moments) {
  int64_t bytes = range.parameter.size_in_bytes();
  const MomentSpan* const spans[] = {&range.first, &range.second};
  for (int i = 0; i < moments; ++i) {
    bytes += MomentBytes(spans[i]->format, spans[i]->size).value_or(0);
  }
  return bytes;
}

absl::Status CheckRanges(std::span<const ParameterRange> ranges, int moments) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].frozen) continue;
    TESSERA_RETURN_IF_ERROR(CheckRange(ranges[i], moments),
                            Annotate(_, Title(i, ranges[i])));
    TESSERA_RETURN_IF_ERROR(CheckUndo(ranges[i], moments),
                            Annotate(_, Title(i, ranges[i])));
  }
  return CheckOverlaps(ranges, moments);
}

}  // namespace tessera::offload
