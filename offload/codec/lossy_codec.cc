#include "offload/codec/lossy_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "offload/codec/block_kernels.h"
#include "offload/codec/checked_codec.h"
#include "offload/codec/half_conversion.h"

namespace tessera::offload {
namespace {

constexpr std::string_view kOnlyFinite =
    "it encodes only finite values within the range of float; use lossless";

bool IsFinite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7fffffff) < 0x7f800000;
}
bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), IsFinite);
}

// Returns whether all values are finite and have no sign bit.
bool AllScales(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) {
    return std::bit_cast<uint32_t>(value) < 0x7f800000;
  });
}

// Returns `count` if all values are finite.
int64_t FirstNotFinite(const float* values, int64_t count) {
  return std::find_if_not(values, values + count, IsFinite) - values;
}

// Reads an array of any floating-point type as floats, a chunk at a time.
// Aligned f32 is used in place; everything else goes through a buffer of one
// chunk.
class FloatSource {
 public:
  FloatSource(DType dtype, std::span<const std::byte> values, int64_t chunk);

  // Elements [at, at + count) as floats, rounded to nearest, padded with zeros
  // to a whole chunk. Valid until the next call.
  absl::StatusOr<const float*> Read(int64_t at, int64_t count);

 private:
  DType dtype_;
  std::span<const std::byte> values_;
  std::vector<float> buffer_;
};

// Writes floats to an array of any floating-point type, a chunk at a time.
class FloatSink {
 public:
  FloatSink(DType dtype, std::span<std::byte> values, int64_t chunk);

  // Returns the place to write a chunk of floats to. Finish converts the first
  // `count` of them into elements [at, at + count). Finite values stay finite.
  float* Place(int64_t at, int64_t count);
  absl::Status Finish(int64_t at, int64_t count);

 private:
  DType dtype_;
  std::span<std::byte> values_;
  std::vector<float> buffer_;
  bool in_place_ = false;
};

bool IsAligned(const void* place) {
  return reinterpret_cast<uintptr_t>(place) % alignof(float) == 0;
}

size_t Bytes(DType dtype, int64_t count) {
  return static_cast<size_t>(count * SizeInBytes(dtype));
}

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

// The error bound of values that are converted from `dtype` to float and back,
// with the bound `floats` in between.
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

  // Fails if an infinity in `held` was finite in the values from `at` on.
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

  const Held* held_;  // Null if nothing is narrowed.
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

// All scales, then all codes.
class Int8Codec final : public CheckedCodec {
 public:
  Int8Codec() : CheckedCodec("int8", CodecFormat::kInt8) {}

 private:
  static constexpr int64_t kBlock = kInt8Block;
  static constexpr int64_t kChunkBlocks = 32;
  static constexpr int64_t kChunk = kChunkBlocks * kBlock;
  static constexpr int64_t kScaleBytes = sizeof(float);

  static constexpr int64_t BlocksOf(int64_t elements) {
    return elements / kBlock + (elements % kBlock != 0);
  }

  static bool Quantizes(DType dtype) {
    return IsFloating(dtype) && SizeInBytes(dtype) > 1;
  }

  ErrorBound PayloadError(DType dtype) const override {
    if (!Quantizes(dtype)) return {};
    // Half a step plus four roundings of up to 127 steps.
    return ThroughFloat(dtype, {.of_block = 0.5 / 127 + 0x1p-21,
                                .absolute = 0x1p-149,
                                .block = kBlock});
  }

  int64_t MaxPayloadBytes(DType dtype, int64_t elements) const override {
    if (!Quantizes(dtype)) return elements * SizeInBytes(dtype);
    return BlocksOf(elements) * kScaleBytes + elements;
  }

  absl::StatusOr<int64_t> EncodePayload(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> payload) const override {
    if (!Quantizes(dtype)) {
      std::copy(values.begin(), values.end(), payload.begin());
      return static_cast<int64_t>(values.size());
    }
    const int64_t count =
        static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
    std::byte* scales_at = payload.data();
    std::byte* codes_at = scales_at + BlocksOf(count) * kScaleBytes;
    FloatSource source(dtype, values, kChunk);
    std::array<float, kChunkBlocks> scales;
    std::array<int8_t, kChunk> codes;
    for (int64_t at = 0; at < count; at += kChunk) {
      const int64_t n = std::min(kChunk, count - at);
      const int64_t blocks = BlocksOf(n);
      TESSERA_ASSIGN_OR_RETURN(const float* floats, source.Read(at, n));
      LargestMagnitudes(floats, blocks, kBlock, scales.data());
      if (!AllFinite({scales.data(), static_cast<size_t>(blocks)})) {
        return CannotHold(dtype, values, at + FirstNotFinite(floats, n),
                          kOnlyFinite);
      }
      QuantizeInt8(floats, blocks, scales.data(), codes.data());
      std::memcpy(scales_at, scales.data(), blocks * kScaleBytes);
      std::memcpy(codes_at, codes.data(), n);
      scales_at += blocks * kScaleBytes;
      codes_at += n;
    }
    return MaxPayloadBytes(dtype, count);
  }

  absl::Status DecodePayload(DType dtype, std::span<const std::byte> payload,
                             std::span<std::byte> values) const override {
    const int64_t count =
        static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
    TESSERA_RETURN_IF_ERROR(
        CheckPayloadBytes(payload, MaxPayloadBytes(dtype, count)));
    if (!Quantizes(dtype)) {
      std::copy(payload.begin(), payload.end(), values.begin());
      return absl::OkStatus();
    }
    const std::byte* scales_at = payload.data();
    const std::byte* codes_at = scales_at + BlocksOf(count) * kScaleBytes;
    FloatSink sink(dtype, values, kChunk);
    std::array<float, kChunkBlocks> scales;
    std::array<int8_t, kChunk> codes = {};
    for (int64_t at = 0; at < count; at += kChunk) {
      const int64_t n = std::min(kChunk, count - at);
      const int64_t blocks = BlocksOf(n);
      std::memcpy(scales.data(), scales_at, blocks * kScaleBytes);
      std::memcpy(codes.data(), codes_at, n);
      scales_at += blocks * kScaleBytes;
      codes_at += n;
      if (!AllScales({scales.data(), static_cast<size_t>(blocks)})) {
        return Damaged(absl::StrCat("a scale of blocks ", at / kBlock, " to ",
                                    at / kBlock + blocks - 1,
                                    " is negative or not finite"));
      }
      DequantizeInt8(codes.data(), blocks, scales.data(), sink.Place(at, n));
      TESSERA_RETURN_IF_ERROR(sink.Finish(at, n));
    }
    return absl::OkStatus();
  }
};

// kFloat: all scales, then all codes. kDouble: all groups, then the codes of
// all scales, then all codes.
class Nf4Codec final : public CheckedCodec {
 public:
  explicit Nf4Codec(Nf4Scales scales)
      : CheckedCodec(scales == Nf4Scales::kDouble ? "nf4_double" : "nf4",
                     scales == Nf4Scales::kDouble ? CodecFormat::kNf4Double
                                                  : CodecFormat::kNf4),
        is_double_(scales == Nf4Scales::kDouble),
        chunk_(is_double_ ? kGroup : kGroup / 4) {}

 private:
  static constexpr int64_t kBlock = kNf4Block;
  static constexpr int64_t kGroup = kScalesOfGroup * kBlock;

  static constexpr int64_t CeilDiv(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
  }

  // Truncates the last block after the last byte in use.
  static constexpr int64_t PackedBytes(int64_t elements) {
    constexpr int64_t kHalf = kNf4BlockBytes;
    return elements / kBlock * kHalf + std::min(elements % kBlock, kHalf);
  }

  // Offsets of the parts of a payload.
  struct Places {
    int64_t scales = 0;  // Or the codes of scales.
    int64_t codes = 0;
  };
  Places PlacesOf(int64_t elements) const {
    const int64_t blocks = CeilDiv(elements, kBlock);
    if (!is_double_) return {0, blocks * int64_t{sizeof(float)}};
    const int64_t groups = CeilDiv(elements, kGroup);
    const int64_t group_bytes = groups * int64_t{sizeof(ScaleGroup)};
    return {group_bytes, group_bytes + blocks};
  }

  ErrorBound PayloadError(DType dtype) const override {
    if (!IsFloating(dtype)) return {};
    constexpr double kHalfGap =
        (double{kNf4Levels[1]} - double{kNf4Levels[0]}) / 2;
    ErrorBound bound = {
        .of_block = kHalfGap + 0x1p-21, .absolute = 0x1p-149, .block = kBlock};
    if (is_double_) {
      bound.of_group = 0.5 / 127 + 0x1p-21;
      bound.group = kGroup;
      bound.absolute = 0x1p-142;  // The step may be subnormal.
    }
    return ThroughFloat(dtype, bound);
  }

  int64_t MaxPayloadBytes(DType dtype, int64_t elements) const override {
    if (!IsFloating(dtype)) return elements * SizeInBytes(dtype);
    return PlacesOf(elements).codes + PackedBytes(elements);
  }

  // Writes the scales of the chunk at element `at` and replaces `scales` with
  // their decoded values.
  void WriteScales(int64_t at, const Places& places, std::span<float> scales,
                   std::span<std::byte> payload) const {
    const int64_t block = at / kBlock;
    if (!is_double_) {
      std::memcpy(&payload[places.scales + block * int64_t{sizeof(float)}],
                  scales.data(), scales.size_bytes());
      return;
    }
    std::array<int8_t, kScalesOfGroup> codes;
    const std::span<int8_t> used = std::span(codes).first(scales.size());
    const ScaleGroup group = QuantizeScales(scales, used);
    DequantizeScales(group, used, scales);
    std::memcpy(&payload[at / kGroup * int64_t{sizeof(group)}], &group,
                sizeof(group));
    std::memcpy(&payload[places.scales + block], used.data(), used.size());
  }

  // Returns false if the scales are invalid.
  bool ReadScales(int64_t at, const Places& places,
                  std::span<const std::byte> payload,
                  std::span<float> scales) const {
    const int64_t block = at / kBlock;
    if (!is_double_) {
      std::memcpy(scales.data(),
                  &payload[places.scales + block * int64_t{sizeof(float)}],
                  scales.size_bytes());
      return AllScales(scales);
    }
    ScaleGroup group;
    std::memcpy(&group, &payload[at / kGroup * int64_t{sizeof(group)}],
                sizeof(group));
    if (!AllScales(std::array{group.mean, group.step})) return false;
    std::array<int8_t, kScalesOfGroup> codes;
    std::memcpy(codes.data(), &payload[places.scales + block], scales.size());
    DequantizeScales(group, std::span(codes).first(scales.size()), scales);
    return true;
  }

  absl::StatusOr<int64_t> EncodePayload(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> payload) const override {
    if (!IsFloating(dtype)) {
      std::copy(values.begin(), values.end(), payload.begin());
      return static_cast<int64_t>(values.size());
    }
    const int64_t count =
        static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
    const Places places = PlacesOf(count);
    FloatSource source(dtype, values, chunk_);
    std::array<float, kScalesOfGroup> room;
    std::array<uint8_t, PackedBytes(kGroup)> packed;
    for (int64_t at = 0; at < count; at += chunk_) {
      const int64_t n = std::min(chunk_, count - at);
      const auto scales = std::span(room).first(CeilDiv(n, kBlock));
      TESSERA_ASSIGN_OR_RETURN(const float* floats, source.Read(at, n));
      LargestMagnitudes(floats, scales.size(), kBlock, scales.data());
      if (!AllFinite(scales)) {
        return CannotHold(dtype, values, at + FirstNotFinite(floats, n),
                          kOnlyFinite);
      }
      WriteScales(at, places, scales, payload);
      QuantizeNf4(floats, scales.size(), scales.data(), packed.data());
      std::memcpy(&payload[places.codes + PackedBytes(at)], packed.data(),
                  PackedBytes(n));
    }
    return MaxPayloadBytes(dtype, count);
  }

  absl::Status DecodePayload(DType dtype, std::span<const std::byte> payload,
                             std::span<std::byte> values) const override {
    const int64_t count =
        static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
    TESSERA_RETURN_IF_ERROR(
        CheckPayloadBytes(payload, MaxPayloadBytes(dtype, count)));
    if (!IsFloating(dtype)) {
      std::copy(payload.begin(), payload.end(), values.begin());
      return absl::OkStatus();
    }
    const Places places = PlacesOf(count);
    FloatSink sink(dtype, values, chunk_);
    std::array<float, kScalesOfGroup> room;
    std::array<uint8_t, PackedBytes(kGroup)> packed = {};
    for (int64_t at = 0; at < count; at += chunk_) {
      const int64_t n = std::min(chunk_, count - at);
      const auto scales = std::span(room).first(CeilDiv(n, kBlock));
      if (!ReadScales(at, places, payload, scales)) {
        return Damaged(absl::StrCat("a scale of blocks ", at / kBlock, " to ",
                                    at / kBlock + scales.size() - 1,
                                    " is negative or not finite"));
      }
      std::memcpy(packed.data(), &payload[places.codes + PackedBytes(at)],
                  PackedBytes(n));
      DequantizeNf4(packed.data(), scales.size(), scales.data(),
                    sink.Place(at, n));
      TESSERA_RETURN_IF_ERROR(sink.Finish(at, n));
    }
    return absl::OkStatus();
  }

  bool is_double_;
  int64_t chunk_;
};

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

std::unique_ptr<Codec> MakeInt8Codec() { return std::make_unique<Int8Codec>(); }

std::unique_ptr<Codec> MakeNf4Codec(Nf4Scales scales) {
  return std::make_unique<Nf4Codec>(scales);
}

}  // namespace tessera::offload
