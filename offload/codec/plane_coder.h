// PlaneCoder: compresses and decompresses one plane of bytes, with zstd, LZ4 or
// the window code (EncodeWindow).
#ifndef TESSERA_OFFLOAD_CODEC_PLANE_CODER_H_
#define TESSERA_OFFLOAD_CODEC_PLANE_CODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::offload {

// The values are part of the format and never change.
enum class PlaneMethod : uint8_t {
  kStored = 0,
  kConstant = 1,  // One byte, repeated.
  kZstd = 2,      // A Zstandard frame (RFC 8878).
  kLz4 = 3,       // An LZ4 block.
  kWindow = 4,    // EncodeWindow.
};

inline constexpr size_t kMaxPlaneBytes = size_t{64} << 10;

std::string_view PlaneMethodName(PlaneMethod method);

// Returns true if this build has the method.
bool HasPlaneMethod(PlaneMethod method);

// Estimates from a sample whether the bytes are so evenly distributed that an
// entropy coder would gain less than about 1.5 %. False for short planes.
bool LooksIncompressible(std::span<const std::byte> plane);

// Example:
//
//   PlaneCoder coder;
//   size_t bytes = coder.Compress(PlaneMethod::kZstd, plane, room);
//   if (bytes == 0) ...  // It did not fit: store the plane unchanged.
//
// Internal to offload/codec. A PlaneCoder keeps the contexts of zstd and LZ4,
// so reuse it. Not thread-safe.
class PlaneCoder {
 public:
  PlaneCoder();
  PlaneCoder(PlaneCoder&&) = delete;
  ~PlaneCoder();

  // Compresses 1 to kMaxPlaneBytes bytes by kZstd, kLz4 or kWindow. Returns the
  // bytes written to `room`, or 0 if they do not fit or the build does not have
  // the method.
  size_t Compress(PlaneMethod method, std::span<const std::byte> plane,
                  std::span<std::byte> room);

  // Decompresses `held`, which may be any bytes, into `plane`. DataLoss if it
  // is not a valid encoding of that many bytes, Unimplemented if the build does
  // not have the method.
  absl::Status Decompress(PlaneMethod method, std::span<const std::byte> held,
                          std::span<std::byte> plane);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

// Encodes a plane of exponents in the window code: three bits each, at the
// speed of memory.
//
//   size_t bytes = EncodeWindow(plane, room);
//
// Weights have few exponents: seven adjacent ones cover about 97 %. A byte e of
// the plane is stored as c = (top - e) modulo 256 if that is at most 6, and
// otherwise as c = 7, with e itself appended to a list. This takes 3.2 bits per
// weight; a Huffman code takes 2.6 at a fifth of the speed.
//
// | bytes | content                                                        |
// | ----- | -------------------------------------------------------------- |
// | 1     | top                                                            |
// | 24    | for each 64 bytes of the plane: bits 0, 1 and 2 of c, 64 each;  |
// |       | the last group is filled up with c = 0                         |
// | rest  | the bytes whose c is 7, in order                               |
//
// Highway chooses the instruction set; the bytes do not depend on it.
//
// Returns the bytes written to `room`; 0 if they do not fit or a sample
// predicts that they will not. The plane must not be empty.
size_t EncodeWindow(std::span<const std::byte> plane,
                    std::span<std::byte> room);

// Decodes `held`, which may be any bytes, into `plane`. Returns false if it is
// not a valid encoding of a plane of this size.
bool DecodeWindow(std::span<const std::byte> held, std::span<std::byte> plane);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_PLANE_CODER_H_
