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
#include "base/arithmetic.h"
#include "base/status_macros.h"
#include "offload/codec/block_kernels.h"
#include "offload/codec/checked_codec.h"
#include "offload/codec/codecs.h"
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

// Returns true if all values are finite and have no sign bit.
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

  // Returns where to write a chunk of floats. Finish converts the first `count`
  // of them into elements [at, at + count). Finite values stay finite.
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

// Encodes arrays of some types and stores arrays of other types unchanged.
class RoundingCodec : public CheckedCodec {
 protected:
  using CheckedCodec::CheckedCodec;

 private:
  // Returns true if arrays of the type are encoded. The other functions are
  // called only for such types.
  virtual bool Rounds(DType dtype) const = 0;
  virtual ErrorBound RoundingError(DType dtype) const = 0;
  virtual int64_t EncodedBytes(int64_t elements) const = 0;
  // `payload` has EncodedBytes(count).
  virtual absl::Status EncodeValues(DType dtype,
                                    std::span<const std::byte> values,
                                    int64_t count,
                                    std::span<std::byte> payload) const = 0;
  virtual absl::Status DecodeValues(DType dtype,
                                    std::span<const std::byte> payload,
                                    int64_t count,
                                    std::span<std::byte> values) const = 0;

  ErrorBound PayloadError(DType dtype) const final {
    return Rounds(dtype) ? RoundingError(dtype) : ErrorBound{};
  }
  int64_t MaxPayloadBytes(DType dtype, int64_t elements) const final {
    return Rounds(dtype) ? EncodedBytes(elements)
                         : elements * SizeInBytes(dtype);
  }
  absl::StatusOr<int64_t> EncodePayload(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> payload) const final {
    const int64_t count =
        static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
    if (Rounds(dtype)) {
      TESSERA_RETURN_IF_ERROR(EncodeValues(dtype, values, count, payload));
    } else {
      std::copy(values.begin(), values.end(), payload.begin());
    }
    return MaxPayloadBytes(dtype, count);
  }
  absl::Status DecodePayload(DType dtype, std::span<const std::byte> payload,
                             std::span<std::byte> values) const final {
    const int64_t count =
        static_cast<int64_t>(values.size()) / SizeInBytes(dtype);
    TESSERA_RETURN_IF_ERROR(
        CheckPayloadBytes(payload, MaxPayloadBytes(dtype, count)));
    if (Rounds(dtype)) return DecodeValues(dtype, payload, count, values);
    std::copy(payload.begin(), payload.end(), values.begin());
    return absl::OkStatus();
  }
};

constexpr int64_t kHeldBytes = 2;
constexpr int64_t kChunk = 4096;  // Elements: in the first-level cache.

class NarrowCodec final : public RoundingCodec {
 public:
  struct Held {
    DType dtype;
    ErrorBound error;
    std::string_view advice;
  };

  NarrowCodec(std::string_view name, CodecFormat format, const Held* held)
      : RoundingCodec(name, format), held_(held) {}

 private:
  bool Rounds(DType dtype) const override {
    return held_ != nullptr && IsFloating(dtype) &&
           SizeInBytes(dtype) > kHeldBytes;
  }
  ErrorBound RoundingError(DType) const override { return held_->error; }
  int64_t EncodedBytes(int64_t elements) const override {
    return elements * kHeldBytes;
  }

  absl::Status EncodeValues(DType dtype, std::span<const std::byte> values,
                            int64_t count,
                            std::span<std::byte> payload) const override {
    const int64_t size = SizeInBytes(dtype);
    for (int64_t at = 0; at < count; at += kChunk) {
      const int64_t n = std::min(kChunk, count - at);
      const auto held = payload.subspan(at * kHeldBytes, n * kHeldBytes);
      TESSERA_RETURN_IF_ERROR(ConvertFloats(
          dtype, values.subspan(at * size, n * size), held_->dtype, held));
      if (HasInfinity(held_->dtype, held)) {
        TESSERA_RETURN_IF_ERROR(CheckInfinities(dtype, values, at, held));
      }
    }
    return absl::OkStatus();
  }

  absl::Status DecodeValues(DType dtype, std::span<const std::byte> payload,
                            int64_t,
                            std::span<std::byte> values) const override {
    return ConvertFloats(held_->dtype, payload, dtype, values);
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

// Quantises blocks of floats. Stores the scales of all blocks, which are their
// largest magnitudes, then all codes.
class BlockCodec : public RoundingCodec {
 protected:
  static constexpr int64_t kMostBlocks = kScalesOfGroup;  // Per chunk.
  static constexpr int64_t kMostCodeBytes = 8192;

  BlockCodec(std::string_view name, CodecFormat format, int64_t block,
             int64_t chunk)
      : RoundingCodec(name, format), block_(block), chunk_(chunk) {}

  int64_t BlocksOf(int64_t elements) const { return CeilDiv(elements, block_); }

  // The bytes of all scales, and of codes.
  virtual int64_t ScaleBytes(int64_t elements) const {
    return BlocksOf(elements) * int64_t{sizeof(float)};
  }
  virtual int64_t CodeBytes(int64_t elements) const = 0;

  virtual void Quantize(const float* values, size_t blocks, const float* scales,
                        std::byte* codes) const = 0;
  virtual void Dequantize(const std::byte* codes, size_t blocks,
                          const float* scales, float* values) const = 0;

  // Writes the scales of the chunk at element `at` of `count`, and replaces
  // them with their decoded values.
  virtual void WriteScales(int64_t at, int64_t, std::span<float> scales,
                           std::span<std::byte> payload) const {
    std::memcpy(&payload[ScaleBytes(at)], scales.data(), scales.size_bytes());
  }
  // Returns false if the scales are invalid.
  virtual bool ReadScales(int64_t at, int64_t,
                          std::span<const std::byte> payload,
                          std::span<float> scales) const {
    std::memcpy(scales.data(), &payload[ScaleBytes(at)], scales.size_bytes());
    return AllScales(scales);
  }

 private:
  int64_t EncodedBytes(int64_t elements) const final {
    return ScaleBytes(elements) + CodeBytes(elements);
  }

  absl::Status EncodeValues(DType dtype, std::span<const std::byte> values,
                            int64_t count,
                            std::span<std::byte> payload) const final {
    FloatSource source(dtype, values, chunk_);
    std::array<float, kMostBlocks> room;
    std::array<std::byte, kMostCodeBytes> codes;
    for (int64_t at = 0; at < count; at += chunk_) {
      const int64_t n = std::min(chunk_, count - at);
      const auto scales = std::span(room).first(BlocksOf(n));
      TESSERA_ASSIGN_OR_RETURN(const float* floats, source.Read(at, n));
      LargestMagnitudes(floats, scales.size(), block_, scales.data());
      if (!AllFinite(scales)) {
        return CannotHold(dtype, values, at + FirstNotFinite(floats, n),
                          kOnlyFinite);
      }
      WriteScales(at, count, scales, payload);
      Quantize(floats, scales.size(), scales.data(), codes.data());
      std::memcpy(&payload[ScaleBytes(count) + CodeBytes(at)], codes.data(),
                  CodeBytes(n));
    }
    return absl::OkStatus();
  }

  absl::Status DecodeValues(DType dtype, std::span<const std::byte> payload,
                            int64_t count,
                            std::span<std::byte> values) const final {
    FloatSink sink(dtype, values, chunk_);
    std::array<float, kMostBlocks> room;
    std::array<std::byte, kMostCodeBytes> codes = {};
    for (int64_t at = 0; at < count; at += chunk_) {
      const int64_t n = std::min(chunk_, count - at);
      const auto scales = std::span(room).first(BlocksOf(n));
      if (!ReadScales(at, count, payload, scales)) {
        return Damaged(absl::StrCat("a scale of blocks ", at / block_, " to ",
                                    at / block_ + BlocksOf(n) - 1,
                                    " is negative or not finite"));
      }
      std::memcpy(codes.data(), &payload[ScaleBytes(count) + CodeBytes(at)],
                  CodeBytes(n));
      Dequantize(codes.data(), scales.size(), scales.data(), sink.Place(at, n));
      TESSERA_RETURN_IF_ERROR(sink.Finish(at, n));
    }
    return absl::OkStatus();
  }

  const int64_t block_;
  const int64_t chunk_;
};

class Int8Codec final : public BlockCodec {
 public:
  Int8Codec()
      : BlockCodec("int8", CodecFormat::kInt8, kInt8Block, 32 * kInt8Block) {}

 private:
  bool Rounds(DType dtype) const override {
    return IsFloating(dtype) && SizeInBytes(dtype) > 1;
  }
  ErrorBound RoundingError(DType dtype) const override {
    // Half a step plus four roundings of up to 127 steps.
    return ThroughFloat(dtype, {.of_block = 0.5 / 127 + 0x1p-21,
                                .absolute = 0x1p-149,
                                .block = kInt8Block});
  }
  int64_t CodeBytes(int64_t elements) const override { return elements; }
  void Quantize(const float* values, size_t blocks, const float* scales,
                std::byte* codes) const override {
    QuantizeInt8(values, blocks, scales, reinterpret_cast<int8_t*>(codes));
  }
  void Dequantize(const std::byte* codes, size_t blocks, const float* scales,
                  float* values) const override {
    DequantizeInt8(reinterpret_cast<const int8_t*>(codes), blocks, scales,
                   values);
  }
};

// kDouble: all groups, then the codes of all scales, then all codes.
class Nf4Codec final : public BlockCodec {
 public:
  explicit Nf4Codec(Nf4Scales scales)
      : BlockCodec(scales == Nf4Scales::kDouble ? "nf4_double" : "nf4",
                   scales == Nf4Scales::kDouble ? CodecFormat::kNf4Double
                                                : CodecFormat::kNf4,
                   kNf4Block,
                   scales == Nf4Scales::kDouble ? kGroup : kGroup / 4),
        is_double_(scales == Nf4Scales::kDouble) {}

 private:
  static constexpr int64_t kBlock = kNf4Block;
  static constexpr int64_t kGroup = kScalesOfGroup * kBlock;
  static_assert(kGroup / 2 <= kMostCodeBytes);

  static int64_t GroupBytes(int64_t elements) {
    return CeilDiv(elements, kGroup) * int64_t{sizeof(ScaleGroup)};
  }

  bool Rounds(DType dtype) const override { return IsFloating(dtype); }
  ErrorBound RoundingError(DType dtype) const override {
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

  int64_t ScaleBytes(int64_t elements) const override {
    return is_double_ ? GroupBytes(elements) + BlocksOf(elements)
                      : BlockCodec::ScaleBytes(elements);
  }
  // Truncates the last block after the last byte in use.
  int64_t CodeBytes(int64_t elements) const override {
    constexpr int64_t kHalf = kNf4BlockBytes;
    return elements / kBlock * kHalf + std::min(elements % kBlock, kHalf);
  }

  void Quantize(const float* values, size_t blocks, const float* scales,
                std::byte* codes) const override {
    QuantizeNf4(values, blocks, scales, reinterpret_cast<uint8_t*>(codes));
  }
  void Dequantize(const std::byte* codes, size_t blocks, const float* scales,
                  float* values) const override {
    DequantizeNf4(reinterpret_cast<const uint8_t*>(codes), blocks, scales,
                  values);
  }

  void WriteScales(int64_t at, int64_t count, std::span<float> scales,
                   std::span<std::byte> payload) const override {
    if (!is_double_) {
      return BlockCodec::WriteScales(at, count, scales, payload);
    }
    std::array<int8_t, kScalesOfGroup> codes;
    const std::span<int8_t> used = std::span(codes).first(scales.size());
    const ScaleGroup group = QuantizeScales(scales, used);
    DequantizeScales(group, used, scales);
    std::memcpy(&payload[GroupBytes(at)], &group, sizeof(group));
    std::memcpy(&payload[GroupBytes(count) + BlocksOf(at)], used.data(),
                used.size());
  }

  bool ReadScales(int64_t at, int64_t count, std::span<const std::byte> payload,
                  std::span<float> scales) const override {
    if (!is_double_) return BlockCodec::ReadScales(at, count, payload, scales);
    ScaleGroup group;
    std::memcpy(&group, &payload[GroupBytes(at)], sizeof(group));
    if (!AllScales(std::array{group.mean, group.step})) return false;
    std::array<int8_t, kScalesOfGroup> codes;
    std::memcpy(codes.data(), &payload[GroupBytes(count) + BlocksOf(at)],
                scales.size());
    DequantizeScales(group, std::span(codes).first(scales.size()), scales);
    return true;
  }

  const bool is_double_;
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
