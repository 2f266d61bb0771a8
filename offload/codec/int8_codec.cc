#include "offload/codec/int8_codec.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/codec/block_kernels.h"
#include "offload/codec/checked_codec.h"
#include "offload/codec/finite.h"
#include "offload/codec/float_stream.h"

namespace tessera::offload {
namespace {

constexpr int64_t kBlock = kInt8Block;
constexpr int64_t kChunkBlocks = 32;
constexpr int64_t kChunk = kChunkBlocks * kBlock;
constexpr int64_t kScaleBytes = sizeof(float);

constexpr int64_t BlocksOf(int64_t elements) {
  return elements / kBlock + (elements % kBlock != 0);
}

// All scales, then all codes.
class Int8Codec final : public CheckedCodec {
 public:
  Int8Codec() : CheckedCodec("int8", CodecFormat::kInt8) {}

 private:
  static bool Quantizes(DType dtype) {
    return IsFloating(dtype) && SizeInBytes(dtype) > 1;
  }

  ErrorBound PayloadError(DType dtype) const override {
    if (!Quantizes(dtype)) return {};
    // Half a step, and four roundings of up to 127 steps.
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
                          kFiniteAlone);
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

}  // namespace

std::unique_ptr<Codec> MakeInt8Codec() { return std::make_unique<Int8Codec>(); }

}  // namespace tessera::offload
