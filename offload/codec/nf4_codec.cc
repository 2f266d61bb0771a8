#include "offload/codec/nf4_codec.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/codec/block_kernels.h"
#include "offload/codec/checked_codec.h"
#include "offload/codec/finite.h"
#include "offload/codec/float_stream.h"
#include "offload/codec/scale_group.h"

namespace tessera::offload {
namespace {

constexpr int64_t kBlock = kNf4Block;
constexpr int64_t kGroup = kScalesOfGroup * kBlock;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Codes of the last block are cut where no element has its low bits there.
constexpr int64_t PackedBytes(int64_t elements) {
  constexpr int64_t kHalf = kNf4BlockBytes;
  return elements / kBlock * kHalf + std::min(elements % kBlock, kHalf);
}

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
  // Where the parts of a payload are.
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

  // Writes the scales of the chunk at element `at`, and sets them to what
  // decoding will see.
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

  // False where no encoding has such scales.
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
                          kFiniteAlone);
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

std::unique_ptr<Codec> MakeNf4Codec(Nf4Scales scales) {
  return std::make_unique<Nf4Codec>(scales);
}

}  // namespace tessera::offload
