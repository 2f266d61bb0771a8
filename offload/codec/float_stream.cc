#include "offload/codec/float_stream.h"

#include <algorithm>

#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "offload/codec/half_conversion.h"

namespace tessera::offload {
namespace {

bool IsAligned(const void* place) {
  return reinterpret_cast<uintptr_t>(place) % alignof(float) == 0;
}

size_t Bytes(DType dtype, int64_t count) {
  return static_cast<size_t>(count * SizeInBytes(dtype));
}

}  // namespace

FloatSource::FloatSource(DType dtype, std::span<const std::byte> values,
                         int64_t chunk)
    : dtype_(dtype), values_(values), buffer_(static_cast<size_t>(chunk)) {}

absl::StatusOr<const float*> FloatSource::Read(int64_t at, int64_t count) {
  const auto part = values_.subspan(Bytes(dtype_, at), Bytes(dtype_, count));
  const size_t n = static_cast<size_t>(count);
  if (dtype_ == DType::kF32 && n == buffer_.size() && IsAligned(part.data())) {
    return reinterpret_cast<const float*>(part.data());
  }
  const std::span<float> floats(buffer_);
  TESSERA_RETURN_IF_ERROR(ConvertFloats(
      dtype_, part, DType::kF32, std::as_writable_bytes(floats.first(n))));
  std::fill(buffer_.begin() + count, buffer_.end(), 0.0f);
  return buffer_.data();
}

FloatSink::FloatSink(DType dtype, std::span<std::byte> values, int64_t chunk)
    : dtype_(dtype), values_(values), buffer_(static_cast<size_t>(chunk)) {}

float* FloatSink::Place(int64_t at, int64_t count) {
  std::byte* const place = values_.data() + Bytes(dtype_, at);
  in_place_ = dtype_ == DType::kF32 && IsAligned(place) &&
              static_cast<size_t>(count) == buffer_.size();
  return in_place_ ? reinterpret_cast<float*>(place) : buffer_.data();
}

absl::Status FloatSink::Finish(int64_t at, int64_t count) {
  if (in_place_) return absl::OkStatus();
  const std::span<const float> floats(buffer_);
  return ConvertFloats(
      DType::kF32, std::as_bytes(floats.first(static_cast<size_t>(count))),
      dtype_, values_.subspan(Bytes(dtype_, at), Bytes(dtype_, count)),
      FloatOverflow::kSaturate);
}

ErrorBound ThroughFloat(DType dtype, const ErrorBound& floats) {
  double unit = 0;      // Half a unit in the last place over the value.
  double smallest = 0;  // Half the smallest subnormal value.
  switch (dtype) {
    case DType::kF64:  // On the way to float.
      unit = 0x1p-24, smallest = 0x1p-150;
      break;
    case DType::kF16:
      unit = 0x1p-11, smallest = 0x1p-25;
      break;
    case DType::kBF16:
      unit = 0x1p-8, smallest = 0x1p-134;
      break;
    case DType::kF8E4M3:
      unit = 0x1p-4, smallest = 0x1p-10;
      break;
    case DType::kF8E5M2:
      unit = 0x1p-3, smallest = 0x1p-17;
      break;
    default:
      break;
  }
  // |decoded - value| <= |float - value| + unit |float| + smallest, and |float|
  // is at most |value| + |float - value|.
  ErrorBound bound = floats;
  bound.of_value = floats.of_value * (1 + unit) + unit;
  bound.of_block *= 1 + unit;
  bound.of_group *= 1 + unit;
  bound.absolute = floats.absolute * (1 + unit) + smallest;
  return bound;
}

}  // namespace tessera::offload
