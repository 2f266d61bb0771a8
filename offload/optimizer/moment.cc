#include "offload/optimizer/moment.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
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
                     " is none; use F64, F32, BF16 or Blockwise8"));
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
        " starts at an address that is no multiple of ", alignment));
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

void SetToZero(const MomentSpan& moment) {
  // Signed codes have another zero than unsigned ones, and a largest magnitude
  // of zero makes every code one.
  std::fill(moment.largest.begin(), moment.largest.end(), 0.0f);
  if (moment.size == 0) return;
  std::memset(
      moment.values, 0,
      static_cast<size_t>(moment.size * ValueBytes(moment.format.type)));
}

}  // namespace tessera::offload
