// MomentFormat and MomentSpan: how the running averages of an optimizer are
// kept, and a range of them.
//
//   const MomentFormat format = MomentFormat::Blockwise8(2048);
//   TESSERA_ASSIGN_OR_RETURN(int64_t bytes, MomentBytes(format, elements));
//   std::vector<std::byte> storage(bytes);   // All zero: moments of zero.
//   TESSERA_ASSIGN_OR_RETURN(MomentSpan moment,
//                            MomentSpan::Over(format, elements, storage));
//
// | format     | bytes for n elements         | worst relative rounding       |
// | ---------- | ---------------------------- | ----------------------------- |
// | F64        | 8 n (f64 parameters alone)   | 2^-53                         |
// | F32        | 4 n                          | 2^-24                         |
// | BF16       | 2 n                          | 2^-8 stochastic, 2^-9 nearest |
// | Blockwise8 | n + 4 ceil(n / block)        | dynamic_map.h                 |
#ifndef TESSERA_OFFLOAD_OPTIMIZER_MOMENT_H_
#define TESSERA_OFFLOAD_OPTIMIZER_MOMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/bfloat16.h"

namespace tessera::offload {

enum class MomentType : uint8_t { kF64, kF32, kBF16, kBlockwise8 };

struct MomentFormat {
  MomentType type = MomentType::kF32;
  int64_t block = 0;  // Elements that share a scale; 0 unless kBlockwise8.

  static constexpr int64_t kDefaultBlock = 2048;

  static constexpr MomentFormat F64() { return {MomentType::kF64}; }
  static constexpr MomentFormat F32() { return {MomentType::kF32}; }
  static constexpr MomentFormat BF16() { return {MomentType::kBF16}; }
  // One byte an element by the map of dynamic_map.h, and one f32, the largest
  // magnitude, a block. `block` is a power of two from 64 to 2048.
  static constexpr MomentFormat Blockwise8(int64_t block = kDefaultBlock) {
    return {MomentType::kBlockwise8, block};
  }

  // "f64", "f32", "bf16", "8-bit/2048".
  std::string ToString() const;

  friend bool operator==(const MomentFormat&, const MomentFormat&) = default;
};

// F32 for "f32", BF16 for "bf16", Blockwise8() for "int8". InvalidArgument for
// another name.
absl::StatusOr<MomentFormat> ParseMomentFormat(std::string_view name);

// OK, or InvalidArgument for a block that is not allowed.
absl::Status CheckMomentFormat(const MomentFormat& format);

// Exactly what `elements` of one moment take. InvalidArgument for a format or
// a number that is not valid.
absl::StatusOr<int64_t> MomentBytes(const MomentFormat& format,
                                    int64_t elements);

// Somebody else's memory, which must outlive the span.
struct MomentSpan {
  MomentFormat format;
  int64_t size = 0;               // Elements.
  std::byte* values = nullptr;    // f64, f32, bf16, or codes.
  std::span<float> largest = {};  // Of each block; empty for other formats.

  // Over typed memory.
  static MomentSpan Of(std::span<float> values);
  static MomentSpan Of(std::span<double> values);
  static MomentSpan Of(std::span<tessera::BF16> values);

  // Over MomentBytes(format, elements) bytes: the scales of the blocks, if any,
  // then the values. InvalidArgument where `storage` has another size or is not
  // aligned for its elements (4 bytes for Blockwise8).
  static absl::StatusOr<MomentSpan> Over(const MomentFormat& format,
                                         int64_t elements,
                                         std::span<std::byte> storage);

  // Elements [begin, begin + count). InvalidArgument where they are not all
  // within, or `begin` is inside a block: the message names the nearest starts.
  absl::StatusOr<MomentSpan> Piece(int64_t begin, int64_t count) const;
};

// OK where element `begin` starts a block of `format`, or it has none.
absl::Status CheckBlockBoundary(const MomentFormat& format, int64_t begin);

// Sets every element to zero.
void SetToZero(const MomentSpan& moment);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_MOMENT_H_
