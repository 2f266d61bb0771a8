// ParameterRange, the input of an optimizer's step, and its operands: spans of
// elements (TypedSpan) and of moments (MomentSpan, MomentFormat).
#ifndef TESSERA_OFFLOAD_OPTIMIZER_PARAMETER_RANGE_H_
#define TESSERA_OFFLOAD_OPTIMIZER_PARAMETER_RANGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/dtype/small_float.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera::offload {

// Contiguous elements of a DType that is known at run time. `Byte` is std::byte
// (TypedSpan) or const std::byte (ConstTypedSpan). Borrows its memory, which
// must outlive the span.
//
//   std::vector<BF16> gradient(n);
//   ConstTypedSpan g = std::span<const BF16>(gradient);
//   TESSERA_ASSIGN_OR_RETURN(TypedSpan p, TypedSpan::Of(tensor.view()));
template <typename Byte>
class BasicTypedSpan {
 public:
  BasicTypedSpan() = default;
  // Precondition: `data` holds `size` elements of `dtype`.
  BasicTypedSpan(Byte* data, DType dtype, int64_t size)
      : data_(data), dtype_(dtype), size_(size) {}
  template <typename T>
  requires DTypeElement<std::remove_const_t<T>> &&(std::is_const_v<Byte> ||
                                                   !std::is_const_v<T>)
      BasicTypedSpan(std::span<T> elements)  // NOLINT: as std::span converts.
      : data_(reinterpret_cast<Byte*>(elements.data())),
        dtype_(kDTypeOf<std::remove_const_t<T>>),
        size_(static_cast<int64_t>(elements.size())) {}

  // The elements of a view in row-major order. FailedPrecondition if they are
  // not contiguous or the CPU cannot read them.
  static absl::StatusOr<BasicTypedSpan> Of(const BasicTensorView<Byte>& view) {
    if (!view.IsContiguous() || view.kind() == MemoryKind::kDevice) {
      return absl::FailedPreconditionError(
          "the optimizer steps contiguous tensors in host memory: copy the "
          "view to one first");
    }
    return BasicTypedSpan(view.data(), view.dtype(), view.element_count());
  }

  operator BasicTypedSpan<const std::byte>() const {
    return BasicTypedSpan<const std::byte>(data_, dtype_, size_);
  }

  Byte* data() const { return data_; }
  // Operand of an operation (base/device/operation_queue.h).
  Byte*& address() { return data_; }
  DType dtype() const { return dtype_; }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t size_in_bytes() const { return size_ * SizeInBytes(dtype_); }

  // The element at `index`, which may be the one past the last.
  Byte* At(int64_t index) const {
    return data_ == nullptr ? nullptr : data_ + index * SizeInBytes(dtype_);
  }

 private:
  Byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t size_ = 0;
};

using TypedSpan = BasicTypedSpan<std::byte>;
using ConstTypedSpan = BasicTypedSpan<const std::byte>;

enum class MomentType : uint8_t { kF64, kF32, kBF16, kBlockwise8 };

// The storage format of an optimizer's running averages.
//
//   const MomentFormat format = MomentFormat::Blockwise8(2048);
//   TESSERA_ASSIGN_OR_RETURN(int64_t bytes, MomentBytes(format, elements));
//   std::vector<std::byte> storage(bytes);   // All zero: moments of zero.
//   TESSERA_ASSIGN_OR_RETURN(MomentSpan moment,
//                            MomentSpan::Over(format, elements, storage));
//
// | format     | bytes for n elements         | worst relative rounding       |
// | ---------- | ---------------------------- | ----------------------------- |
// | F64        | 8 n (f64 parameters only)    | 2^-53                         |
// | F32        | 4 n                          | 2^-24                         |
// | BF16       | 2 n                          | 2^-8 stochastic, 2^-9 nearest |
// | Blockwise8 | n + 4 ceil(n / block)        | dynamic_map.h                 |
struct MomentFormat {
  MomentType type = MomentType::kF32;
  int64_t block = 0;  // Elements that share a scale; 0 unless kBlockwise8.

  static constexpr int64_t kDefaultBlock = 2048;

  static constexpr MomentFormat F64() { return {MomentType::kF64}; }
  static constexpr MomentFormat F32() { return {MomentType::kF32}; }
  static constexpr MomentFormat BF16() { return {MomentType::kBF16}; }
  // One byte per element, encoded by DynamicMap, and one f32 per block, its
  // largest magnitude. `block` is a power of two from 64 to 2048.
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

// The exact number of bytes of `elements` of one moment. InvalidArgument for an
// invalid format or number.
absl::StatusOr<int64_t> MomentBytes(const MomentFormat& format,
                                    int64_t elements);

// A range of an optimizer's running averages. Borrows its memory, which must
// outlive the span.
struct MomentSpan {
  MomentFormat format;
  int64_t size = 0;               // Elements.
  std::byte* values = nullptr;    // f64, f32, bf16, or codes.
  std::span<float> largest = {};  // By block; empty for other formats.

  // Spans over typed memory.
  static MomentSpan Of(std::span<float> values);
  static MomentSpan Of(std::span<double> values);
  static MomentSpan Of(std::span<tessera::BF16> values);

  // A span over MomentBytes(format, elements) bytes: the scales of the blocks,
  // if any, then the values. InvalidArgument if `storage` has another size or
  // is not aligned for its elements (4 bytes for Blockwise8).
  static absl::StatusOr<MomentSpan> Over(const MomentFormat& format,
                                         int64_t elements,
                                         std::span<std::byte> storage);

  // Elements [begin, begin + count). InvalidArgument if they are not all within
  // the span, or `begin` is inside a block: the message has the nearest block
  // boundaries.
  absl::StatusOr<MomentSpan> Piece(int64_t begin, int64_t count) const;
};

// OK if element `begin` starts a block of `format`, or the format has no
// blocks.
absl::Status CheckBlockBoundary(const MomentFormat& format, int64_t begin);

// The input of an optimizer's step for a range of one parameter.
//
//   ParameterRange range = {
//       .name = "layers.0.weight",
//       .parameter = std::span(master),           // f32
//       .gradient = std::span<const BF16>(gradient),
//       .first = MomentSpan::Of(std::span(m)),
//       .second = MomentSpan::Of(std::span(v)),
//       .copy = std::span(weights),               // bf16, optional
//   };
//
// A range may be a whole parameter, a shard of it, or a piece that is currently
// in memory. Stepping the pieces is bit-identical to stepping the whole.

struct ParameterRange {
  std::string_view name = {};  // For messages.

  // `begin` is the start of the range within the parameter (or this rank's
  // shard of it) that its moments belong to; `whole` is the number of elements
  // of that parameter or shard. With 8-bit moments the range must start at a
  // block boundary and end at one or at the end of the whole; stochastic
  // rounding depends on `begin`. If `whole` is 0, it ends with the range.
  int64_t begin = 0;
  int64_t whole = 0;

  TypedSpan parameter = {};      // f32, or f64. Updated.
  ConstTypedSpan gradient = {};  // f32, bf16 or f16; f64 for f64.
  MomentSpan first = {};         // Updated; unused by plain SGD.
  MomentSpan second = {};        // Updated; AdamW only.
  TypedSpan copy = {};           // bf16 or f16; set to the new parameters,
                                 // rounded to nearest even. Empty: none.
  // Memory of UndoBytes bytes, where a step saves the parameter and the moments
  // before it overwrites them, so that it can be undone. Empty: not saved.
  std::span<std::byte> undo = {};

  bool decays = true;   // False: no weight decay.
  bool frozen = false;  // Nothing is read, written or checked.
};

// The bytes of the parameter and of its first `moments` (0 to 2) moments.
int64_t UndoBytes(const ParameterRange& range, int moments);

// OK, or InvalidArgument, with the range's name and number, if lengths differ,
// a type is not supported, data is not aligned to its elements, `begin` or the
// end is inside a block, or memory that is written overlaps other memory of any
// of the ranges. The first `moments` (0 to 2) moments are required; others are
// ignored.
absl::Status CheckRanges(std::span<const ParameterRange> ranges, int moments);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_PARAMETER_RANGE_H_
