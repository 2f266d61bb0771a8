// Codec: what shrinks a block of model state before it is held. Users include
// offload/codec/codec.h, which also creates them.
#ifndef TESSERA_OFFLOAD_CODEC_CODEC_INTERFACE_H_
#define TESSERA_OFFLOAD_CODEC_CODEC_INTERFACE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"

namespace tessera::offload {

// How far a decoded value may lie from the one that was encoded:
//
//   |decoded - value| <= of_value * |value|
//                        + of_block * (largest magnitude of its block)
//                        + of_group * (largest magnitude of its group)
//                        + absolute
//
// Elements i and j of one Encode are of the same block where i / block equals
// j / block; groups likewise. Infinities that a codec holds come back exact,
// NaN as NaN.
struct ErrorBound {
  double of_value = 0;
  double of_block = 0;
  double of_group = 0;
  double absolute = 0;
  int64_t block = 0;  // Elements; 0 where of_block is 0.
  int64_t group = 0;  // Elements; 0 where of_group is 0.

  bool IsZero() const {
    return of_value == 0 && of_block == 0 && of_group == 0 && absolute == 0;
  }
  double Of(double value, double largest_of_block,
            double largest_of_group) const {
    const double magnitude = value < 0 ? -value : value;
    return of_value * magnitude + of_block * largest_of_block +
           of_group * largest_of_group + absolute;
  }
};

// Turns arrays of elements into fewer bytes and back. An encoding is complete
// in itself: it carries the codec, the dtype and the number of elements, and
// decodes on any machine of the same byte order, whatever its instruction set;
// the same values give the same bytes on all of them. It has no checksum: who
// keeps it where bits may flip adds one.
//
// Elements are in the processor's byte order and need not be aligned. Every
// call works in the calling thread; const calls may run at the same time. The
// floating-point environment is the default one: round to nearest, subnormals
// kept.
class Codec {
 public:
  virtual ~Codec() = default;

  // The name that CreateCodec makes it by.
  virtual std::string_view name() const = 0;

  // Whether every array of `dtype` comes back with the same bits. Lossy codecs
  // are lossless for what they hold as it is. False for an invalid dtype.
  virtual bool IsLossless(DType dtype) const = 0;

  // What the error of finite values may be. Zero exactly where IsLossless.
  // InvalidArgument for an invalid dtype.
  virtual absl::StatusOr<ErrorBound> MaxError(DType dtype) const = 0;

  // The most bytes that Encode may write for `elements` elements.
  // InvalidArgument for an invalid dtype, a negative number, or more elements
  // than int64_t counts bytes of.
  virtual absl::StatusOr<int64_t> MaxEncodedBytes(DType dtype,
                                                  int64_t elements) const = 0;

  // Encodes values.size() / SizeInBytes(dtype) elements and returns the bytes
  // written to the front of `encoded`, which has room for MaxEncodedBytes.
  // InvalidArgument, with `encoded` undefined, where the room is too small
  // (names the bytes needed), the values are no whole number of elements, the
  // spans overlap, or the codec cannot hold a value (names its index).
  virtual absl::StatusOr<int64_t> Encode(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> encoded) const = 0;

  // Decodes exactly the bytes that one Encode returned into exactly as many
  // elements. InvalidArgument where `encoded` is of another codec, dtype or
  // number of elements, or the spans overlap; DataLoss where it is damaged;
  // Unimplemented where it needs a library that this build has not.
  // Any bytes are safe to pass. `values` is undefined after an error.
  virtual absl::Status Decode(DType dtype, std::span<const std::byte> encoded,
                              std::span<std::byte> values) const = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_CODEC_INTERFACE_H_
