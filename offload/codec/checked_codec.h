// CheckedCodec: base class of all codecs.
#ifndef TESSERA_OFFLOAD_CODEC_CHECKED_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_CHECKED_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "offload/codec/block_kernels.h"
#include "offload/codec/codec.h"

namespace tessera::offload {

// Format of the bytes after the header. The values are part of the format and
// never change.
enum class CodecFormat : uint8_t {
  kNone = 0,
  kFp16 = 1,
  kBf16 = 2,
  kInt8 = 3,
  kNf4 = 4,
  kNf4Double = 5,
  kLossless = 6,  // Each plane stores its method.
};

// Checks arguments and writes the header of every encoding.
//
//   class Mine final : public CheckedCodec { ... the four virtuals ... };
//
// Internal to offload/codec. Header, in the processor's byte order:
//
// | byte | content                             |
// | ---- | ----------------------------------- |
// | 0, 1 | 'T', 'c'                            |
// | 2    | version of the format, 1            |
// | 3    | CodecFormat                         |
// | 4    | DType                               |
// | 5-7  | 0                                   |
// | 8-15 | number of elements                  |
class CheckedCodec : public Codec {
 public:
  std::string_view name() const final { return name_; }
  absl::StatusOr<ErrorBound> MaxError(DType dtype) const final;
  absl::StatusOr<int64_t> MaxEncodedBytes(DType dtype,
                                          int64_t elements) const final;
  absl::StatusOr<int64_t> Encode(DType dtype, std::span<const std::byte> values,
                                 std::span<std::byte> encoded) const final;
  absl::Status Decode(DType dtype, std::span<const std::byte> encoded,
                      std::span<std::byte> values) const final;
  bool IsLossless(DType dtype) const final;

 protected:
  CheckedCodec(std::string_view name, CodecFormat format)
      : name_(name), format_(format) {}

  // `dtype` is valid; the bytes of `elements` are at most 2^60.
  virtual ErrorBound PayloadError(DType dtype) const = 0;
  virtual int64_t MaxPayloadBytes(DType dtype, int64_t elements) const = 0;

  // Encode and decode the bytes after the header. `values` has the number of
  // elements of the header; `payload` has room for MaxPayloadBytes.
  virtual absl::StatusOr<int64_t> EncodePayload(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> payload) const = 0;
  virtual absl::Status DecodePayload(DType dtype,
                                     std::span<const std::byte> payload,
                                     std::span<std::byte> values) const = 0;

  // DataLoss unless the payload has `wanted` bytes.
  absl::Status CheckPayloadBytes(std::span<const std::byte> payload,
                                 int64_t wanted) const;
  absl::Status Damaged(std::string_view what) const;

  // InvalidArgument: this codec cannot represent values[index]; `advice`
  // explains how to fix it.
  absl::Status CannotHold(DType dtype, std::span<const std::byte> values,
                          int64_t index, std::string_view advice) const;

 private:
  absl::Status CheckHeader(DType dtype, std::span<const std::byte> encoded,
                           int64_t elements) const;
  absl::StatusOr<int64_t> CountElements(DType dtype, size_t bytes) const;
  absl::Status CheckDisjoint(std::span<const std::byte> a,
                             std::span<const std::byte> b) const;
  absl::Status Refuse(std::string_view what) const;

  std::string name_;
  CodecFormat format_;
};

// Returns element `index` of an array as a double, exactly except for integers
// above 2^53.
double ElementAsDouble(DType dtype, std::span<const std::byte> values,
                       int64_t index);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_CHECKED_CODEC_H_
