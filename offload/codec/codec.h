// Codecs compress blocks of model state before they are stored in host memory
// or on disk (Codec, CreateCodec).
//
//   TESSERA_ASSIGN_OR_RETURN(auto codec, CreateCodec("lossless"));
//   TESSERA_ASSIGN_OR_RETURN(
//       int64_t room, codec->MaxEncodedBytes(DType::kBF16, elements));
//   std::vector<std::byte> held(room);
//   TESSERA_ASSIGN_OR_RETURN(int64_t bytes,
//                            codec->Encode(DType::kBF16, values, held));
//   held.resize(bytes);
//   ...
//   TESSERA_RETURN_IF_ERROR(codec->Decode(DType::kBF16, held, values));
//
// offload/codec/README.md has sizes, errors and speeds.
#ifndef TESSERA_OFFLOAD_CODEC_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"

namespace tessera::offload {

// The error bound of a decoded value:
//
//   |decoded - value| <= of_value * |value|
//                        + of_block * (largest magnitude of its block)
//                        + of_group * (largest magnitude of its group)
//                        + absolute
//
// Elements i and j of one Encode are in the same block if i / block equals
// j / block; groups likewise. Infinities that a codec accepts are restored
// exactly, NaN as NaN.
struct ErrorBound {
  double of_value = 0;
  double of_block = 0;
  double of_group = 0;
  double absolute = 0;
  int64_t block = 0;  // Elements; 0 if of_block is 0.
  int64_t group = 0;  // Elements; 0 if of_group is 0.

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

// Compresses and decompresses arrays of elements. An encoding is
// self-contained: it stores the codec, the dtype and the number of elements,
// and decodes on any machine of the same byte order. The encoding of the same
// values is identical on every instruction set. It has no checksum; storage
// that may corrupt bits must add one.
//
// Elements are in the processor's byte order and need not be aligned. Every
// call runs in the calling thread; const calls may run concurrently. Requires
// the default floating-point environment: round to nearest, subnormals kept.
class Codec {
 public:
  virtual ~Codec() = default;

  // The codec's name in CreateCodec.
  virtual std::string_view name() const = 0;

  // Returns true if every array of `dtype` is restored bit for bit. Lossy
  // codecs are lossless for types that they store unchanged. False for an
  // invalid dtype.
  virtual bool IsLossless(DType dtype) const = 0;

  // The error bound of finite values; zero if and only if IsLossless.
  // InvalidArgument for an invalid dtype.
  virtual absl::StatusOr<ErrorBound> MaxError(DType dtype) const = 0;

  // The maximum number of bytes that Encode writes for `elements` elements.
  // InvalidArgument for an invalid dtype, a negative number, or if the size in
  // bytes overflows int64_t.
  virtual absl::StatusOr<int64_t> MaxEncodedBytes(DType dtype,
                                                  int64_t elements) const = 0;

  // Encodes values.size() / SizeInBytes(dtype) elements and returns the bytes
  // written to the front of `encoded`, which has room for MaxEncodedBytes.
  // InvalidArgument, with `encoded` undefined, if the room is too small (the
  // message has the bytes needed), the values are not a whole number of
  // elements, the spans overlap, or the codec cannot represent a value (the
  // message has its index).
  virtual absl::StatusOr<int64_t> Encode(
      DType dtype, std::span<const std::byte> values,
      std::span<std::byte> encoded) const = 0;

  // Decodes exactly the bytes that one Encode returned into exactly as many
  // elements. InvalidArgument if `encoded` has another codec, dtype or number
  // of elements, or the spans overlap; DataLoss if it is damaged; Unimplemented
  // if it needs a library that this build does not have. Any bytes are safe to
  // pass. `values` is undefined after an error.
  virtual absl::Status Decode(DType dtype, std::span<const std::byte> encoded,
                              std::span<std::byte> values) const = 0;
};

// Creates a codec by name.
//
// | name           | stored data                                             |
// | -------------- | ------------------------------------------------------- |
// | none           | the values                                              |
// | fp16, bf16     | wider floats rounded to 16 bits                         |
// | int8           | floats of 16 bits or more as 8 bits, blocks of 128      |
// | nf4            | floats as 4-bit NormalFloat, blocks of 64               |
// | quantization   | nf4, by the name of configurations                      |
// | nf4_double     | nf4 with block scales in 8 bits                         |
// | lossless       | byte planes, entropy-coded by zstd where they shrink    |
// | lossless_fast  | byte planes, exponents in 3 bits (a fifth of the time)  |
// | lossless_lz4   | byte planes, coded by LZ4 where they shrink             |
//
// Each codec stores data that it cannot shrink (integers, narrower floats)
// unchanged. InvalidArgument for another name, with the list of names;
// Unimplemented for "lossless_lz4" in a build without LZ4. "lossless" without
// zstd encodes like "lossless_fast".
absl::StatusOr<std::unique_ptr<Codec>> CreateCodec(std::string_view name);

// All names that CreateCodec accepts, in the order above.
std::span<const std::string_view> CodecNames();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_CODEC_H_
