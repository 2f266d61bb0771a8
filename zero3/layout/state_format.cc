#include "zero3/layout/state_format.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera::zero3 {
namespace {

StateFormat OfMoment(const offload::MomentFormat& moment) {
  switch (moment.type) {
    case offload::MomentType::kF64:
      return {.dtype = DType::kF64};
    case offload::MomentType::kF32:
      return {.dtype = DType::kF32};
    case offload::MomentType::kBF16:
      return {.dtype = DType::kBF16};
    case offload::MomentType::kBlockwise8:
      return {.dtype = DType::kU8, .block = moment.block};
  }
  return {};
}

}  // namespace

std::string_view StatePartName(StatePart part) {
  constexpr std::array<std::string_view, kAllStateParts.size()> kNames = {
      "value", "master", "first_moment", "second_moment"};
  return IsValid(part) ? kNames[static_cast<size_t>(part)] : "invalid";
}

std::string StateFormat::ToString() const {
  return block == 0 ? std::string(DTypeName(dtype))
                    : absl::StrCat("8-bit/", block);
}

std::string MomentKinds::ToString() const {
  return absl::StrCat(count, " of ", format.ToString());
}

std::optional<StateFormat> StateFormatOf(const ModelParameter& parameter,
                                         const MomentKinds& moments,
                                         StatePart part) {
  if (part == StatePart::kValue) return StateFormat{.dtype = parameter.dtype()};
  if (!parameter.trainable()) return std::nullopt;
  if (part == StatePart::kMaster) {
    if (SizeInBytes(parameter.dtype()) >= 4) return std::nullopt;
    return StateFormat{.dtype = DType::kF32};
  }
  const bool is_first = part == StatePart::kFirstMoment;
  if (moments.count < (is_first ? 1 : 2) ||
      (!is_first && parameter.spec.orthogonalized)) {
    return std::nullopt;
  }
  return OfMoment(parameter.dtype() == DType::kF64
                      ? offload::MomentFormat::F64()
                      : moments.format);
}

std::array<ByteCopy, 2> CopiesOf(const ConstStateArray& from,
                                 const StateArray& to, int64_t begin,
                                 int64_t end) {
  const StateFormat& format = from.format;
  std::array<ByteCopy, 2> copies;
  if (format.block > 0) {
    copies[0] = {from.bytes + format.ScaleBytes(begin - from.begin),
                 to.bytes + format.ScaleBytes(begin - to.begin),
                 format.ScaleBytes(end - begin)};
  }
  const int64_t size = SizeInBytes(format.dtype);
  copies[1] = {
      from.bytes + format.ScaleBytes(from.capacity) +
          (begin - from.begin) * size,
      to.bytes + format.ScaleBytes(to.capacity) + (begin - to.begin) * size,
      (end - begin) * size};
  return copies;
}

void CopyElements(const ConstStateArray& from, const StateArray& to,
                  int64_t begin, int64_t end) {
  for (const ByteCopy& copy : CopiesOf(from, to, begin, end)) {
    // memcpy with a null pointer is undefined, even for 0 bytes.
    if (copy.bytes == 0) continue;
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  }
}

}  // namespace tessera::zero3
