#include "offload/codec/narrow_codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status_macros.h"
#include "offload/codec/checked_codec.h"
#include "offload/codec/half_conversion.h"

namespace tessera::offload {
namespace {

constexpr int64_t kHeldBytes = 2;
constexpr int64_t kChunk = 4096;  // Elements: in the first-level cache.

class NarrowCodec final : public CheckedCodec {
 public:
  struct Held {
    DType dtype;
    ErrorBound error;
    std::string_view advice;
  };

  NarrowCodec(std::string_view name, CodecFormat format, const Held* held)
      : CheckedCodec(name, format), held_(held) {}

 private:
  bool Narrows(DType dtype) const {
    return held_ != nullptr && IsFloating(dtype) &&
           SizeInBytes(dtype) > kHeldBytes;
  }

  ErrorBound PayloadError(DType dtype) const override {
    return Narrows(dtype) ? held_->error : ErrorBound{};
  }

  int64_t MaxPayloadBytes(DType dtype, int64_t elements) const override {
    return elements * (Narrows(dtype) ? kHeldBytes : SizeInBytes(dtype));
  }

  absl::StatusOr<int64_t> EncodePayload(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> payload) const override {
    if (!Narrows(dtype)) {
      std::copy(values.begin(), values.end(), payload.begin());
      return static_cast<int64_t>(values.size());
    }
    const int64_t size = SizeInBytes(dtype);
    const int64_t count = static_cast<int64_t>(values.size()) / size;
    for (int64_t at = 0; at < count; at += kChunk) {
      const int64_t n = std::min(kChunk, count - at);
      const auto held = payload.subspan(at * kHeldBytes, n * kHeldBytes);
      TESSERA_RETURN_IF_ERROR(ConvertFloats(
          dtype, values.subspan(at * size, n * size), held_->dtype, held));
      if (HasInfinity(held_->dtype, held)) {
        TESSERA_RETURN_IF_ERROR(CheckInfinities(dtype, values, at, held));
      }
    }
    return count * kHeldBytes;
  }

  absl::Status DecodePayload(DType dtype, std::span<const std::byte> payload,
                             std::span<std::byte> values) const override {
    const int64_t count =
        static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
    TESSERA_RETURN_IF_ERROR(
        CheckPayloadBytes(payload, MaxPayloadBytes(dtype, count)));
    return ConvertFloats(Narrows(dtype) ? held_->dtype : dtype, payload, dtype,
                         values);
  }

  // Refuses infinities of `held` that were none in the values from `at` on.
  absl::Status CheckInfinities(DType dtype, std::span<const std::byte> values,
                               int64_t at,
                               std::span<const std::byte> held) const {
    const int64_t count = static_cast<int64_t>(held.size()) / kHeldBytes;
    for (int64_t i = 0; i < count; ++i) {
      if (std::isinf(ElementAsDouble(held_->dtype, held, i)) &&
          !std::isinf(ElementAsDouble(dtype, values, at + i))) {
        return CannotHold(dtype, values, at + i, held_->advice);
      }
    }
    return absl::OkStatus();
  }

  const Held* held_;  // Null where nothing is narrowed.
};

// Half a unit in the last place, of normal and of subnormal values.
constexpr NarrowCodec::Held kFp16 = {
    DType::kF16,
    {.of_value = 0x1p-11, .absolute = 0x1p-25},
    "finite values past 65504 would become infinite; use bf16, or scale them"};
constexpr NarrowCodec::Held kBf16 = {
    DType::kBF16,
    {.of_value = 0x1p-8, .absolute = 0x1p-134},
    "finite values past 3.38953e+38 would become infinite; scale them, or use "
    "lossless"};

}  // namespace

std::unique_ptr<Codec> MakeNoneCodec() {
  return std::make_unique<NarrowCodec>("none", CodecFormat::kNone, nullptr);
}
std::unique_ptr<Codec> MakeFp16Codec() {
  return std::make_unique<NarrowCodec>("fp16", CodecFormat::kFp16, &kFp16);
}
std::unique_ptr<Codec> MakeBf16Codec() {
  return std::make_unique<NarrowCodec>("bf16", CodecFormat::kBf16, &kBf16);
}

}  // namespace tessera::offload
