#include "zero3/state/int8_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

constexpr int64_t kChunkBlocks = 32;
constexpr int64_t kChunk = kChunkBlocks * kInt8BlockElements;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Floats = std::array<float, kChunk>;

int64_t BlocksOf(int64_t elements) {
  return (elements + kInt8BlockElements - 1) / kInt8BlockElements;
}

// Encodes elements [at, at + n) of `elements`; `floats` has room for whole
// blocks.
void EncodeChunk(Floats& floats, int64_t at, int64_t n, int64_t elements,
                 std::byte* encoded) {
  const auto blocks = static_cast<size_t>(BlocksOf(n));
  std::fill(floats.begin() + n,
            floats.begin() + static_cast<int64_t>(blocks) * kInt8BlockElements,
            0.0f);
  std::array<float, kChunkBlocks> scales;
  std::array<int8_t, kChunk> codes;
  offload::LargestMagnitudes(floats.data(), blocks, kInt8BlockElements,
                             scales.data());
  for (size_t b = 0; b < blocks; ++b) {
    if (std::isfinite(scales[b])) continue;
    scales[b] = kNan;
    float* const block = floats.data() + b * kInt8BlockElements;
    std::fill_n(block, kInt8BlockElements, 0.0f);
  }
  std::array<float, kChunkBlocks> finite = scales;
  for (size_t b = 0; b < blocks; ++b) {
    if (std::isnan(finite[b])) finite[b] = 0;
  }
  offload::QuantizeInt8(floats.data(), blocks, finite.data(), codes.data());
  std::byte* const scales_at = encoded + 4 * (at / kInt8BlockElements);
  std::byte* const codes_at = encoded + 4 * BlocksOf(elements) + at;
  std::memcpy(scales_at, scales.data(), 4 * blocks);
  std::memcpy(codes_at, codes.data(), static_cast<size_t>(n));
}

void DecodeChunk(const std::byte* encoded, int64_t at, int64_t n,
                 int64_t elements, Floats& floats) {
  const auto blocks = static_cast<size_t>(BlocksOf(n));
  std::array<float, kChunkBlocks> scales;
  std::array<int8_t, kChunk> codes = {};
  std::memcpy(scales.data(), encoded + 4 * (at / kInt8BlockElements),
              4 * blocks);
  std::memcpy(codes.data(), encoded + 4 * BlocksOf(elements) + at,
              static_cast<size_t>(n));
  std::array<float, kChunkBlocks> finite = scales;
  for (size_t b = 0; b < blocks; ++b) {
    if (!std::isfinite(finite[b])) finite[b] = 0;
  }
  offload::DequantizeInt8(codes.data(), blocks, finite.data(), floats.data());
  for (size_t b = 0; b < blocks; ++b) {
    if (std::isfinite(scales[b])) continue;
    std::fill_n(floats.data() + b * kInt8BlockElements, kInt8BlockElements,
                kNan);
  }
}

// Clears the last bytes of an encoding, after its codes.
void ClearPadding(int64_t elements, std::span<std::byte> encoded) {
  const auto used = static_cast<size_t>(4 * BlocksOf(elements) + elements);
  std::fill(encoded.begin() + static_cast<std::ptrdiff_t>(used), encoded.end(),
            std::byte{0});
}

std::span<const std::byte> BytesOf(const Floats& floats, int64_t n) {
  return std::as_bytes(std::span(floats).first(static_cast<size_t>(n)));
}

void SumChunk(std::span<const std::span<const std::byte>> sources, int64_t at,
              int64_t n, int64_t elements, Floats& sums) {
  Floats addends;
  std::fill_n(sums.begin(), n, 0.0f);
  for (const std::span<const std::byte> source : sources) {
    DecodeChunk(source.data(), at, n, elements, addends);
    for (int64_t i = 0; i < n; ++i) {
      sums[static_cast<size_t>(i)] += addends[static_cast<size_t>(i)];
    }
  }
}

}  // namespace

absl::Status CheckInt8Sizes(DType dtype, size_t value_bytes,
                            std::span<const std::byte> encoded) {
  if (!HasInt8Form(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("int8 blocks of ", DTypeName(dtype),
                     "; f32, bf16 and f16 can be encoded"));
  }
  const auto width = static_cast<size_t>(SizeInBytes(dtype));
  const auto elements = static_cast<int64_t>(value_bytes / width);
  if (value_bytes % width != 0 ||
      static_cast<int64_t>(encoded.size()) != Int8Bytes(elements)) {
    return absl::InvalidArgumentError(absl::StrCat(
        encoded.size(), " bytes of int8 blocks for ", value_bytes, " bytes of ",
        DTypeName(dtype), "; expected ", Int8Bytes(elements)));
  }
  if (reinterpret_cast<uintptr_t>(encoded.data()) % alignof(float) != 0) {
    return absl::InvalidArgumentError("int8 blocks must be aligned to 4 bytes");
  }
  return absl::OkStatus();
}

absl::Status EncodeInt8(DType dtype, std::span<const std::byte> values,
                        std::span<std::byte> encoded) {
  TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(dtype, values.size(), encoded));
  const int64_t width = SizeInBytes(dtype);
  const int64_t elements = static_cast<int64_t>(values.size()) / width;
  Floats floats;
  for (int64_t at = 0; at < elements; at += kChunk) {
    const int64_t n = std::min(kChunk, elements - at);
    TESSERA_RETURN_IF_ERROR(
        Convert(dtype,
                values.subspan(static_cast<size_t>(at * width),
                               static_cast<size_t>(n * width)),
                DType::kF32,
                std::as_writable_bytes(
                    std::span(floats).first(static_cast<size_t>(n)))));
    EncodeChunk(floats, at, n, elements, encoded.data());
  }
  ClearPadding(elements, encoded);
  return absl::OkStatus();
}

absl::Status DecodeInt8(std::span<const std::byte> encoded, DType dtype,
                        std::span<std::byte> values) {
  return SumInt8(std::span(&encoded, 1), 1, dtype, values);
}

absl::Status SumInt8(std::span<const std::span<const std::byte>> sources,
                     float divisor, DType dtype, std::span<std::byte> values) {
  for (const std::span<const std::byte> source : sources) {
    TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(dtype, values.size(), source));
  }
  const int64_t width = SizeInBytes(dtype);
  const int64_t elements = static_cast<int64_t>(values.size()) / width;
  Floats sums;
  for (int64_t at = 0; at < elements; at += kChunk) {
    const int64_t n = std::min(kChunk, elements - at);
    if (sources.size() == 1) {
      DecodeChunk(sources[0].data(), at, n, elements, sums);
    } else {
      SumChunk(sources, at, n, elements, sums);
    }
    if (divisor != 1) {
      for (int64_t i = 0; i < n; ++i) sums[static_cast<size_t>(i)] /= divisor;
    }
    TESSERA_RETURN_IF_ERROR(
        Convert(DType::kF32, BytesOf(sums, n), dtype,
                values.subspan(static_cast<size_t>(at * width),
                               static_cast<size_t>(n * width))));
  }
  return absl::OkStatus();
}

absl::Status SumInt8Encoded(std::span<const std::span<const std::byte>> sources,
                            int64_t elements, std::span<std::byte> encoded) {
  const auto bytes = static_cast<size_t>(elements) * sizeof(float);
  TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(DType::kF32, bytes, encoded));
  for (const std::span<const std::byte> source : sources) {
    TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(DType::kF32, bytes, source));
  }
  Floats sums;
  for (int64_t at = 0; at < elements; at += kChunk) {
    const int64_t n = std::min(kChunk, elements - at);
    SumChunk(sources, at, n, elements, sums);
    EncodeChunk(sums, at, n, elements, encoded.data());
  }
  ClearPadding(elements, encoded);
  return absl::OkStatus();
}

}  // namespace tessera::zero3
