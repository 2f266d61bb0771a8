// The lossless codecs: every bit of every input is restored.
//
//   std::unique_ptr<Codec> codec = MakeLosslessCodec();
//
// Elements are cut into independent frames of 64 Ki, a frame into byte planes
// (offload/codec/byte_planes.h). A plane of one repeated byte is stored as that
// byte, a plane that an entropy coder shrinks as its output, and any other
// unchanged: an encoding is at most 4 bytes a plane and frame longer than the
// values. Working memory of each concurrent call: the planes of one frame and
// the coder's context.
//
// The exponents of weights compress to 2.6 of 8 bits, their mantissas not at
// all: Hershcovitch et al., "ZipNN: Lossless Compression for AI Models",
// arXiv 2411.05239.
#ifndef TESSERA_OFFLOAD_CODEC_LOSSLESS_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_LOSSLESS_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "offload/codec/codec.h"

namespace tessera::offload {

// Encodes with zstd, or with the window code in a build without zstd. Each
// lossless codec decodes what the others encode; Unimplemented if the build
// does not have the library.
std::unique_ptr<Codec> MakeLosslessCodec();

// Encodes with the window code (offload/codec/window_code.h), which needs no
// library: 3.2 bits for the exponent of a weight, several times as fast.
std::unique_ptr<Codec> MakeLosslessFastCodec();

// Encodes with LZ4, which has no entropy coder: for planes that repeat.
// Unimplemented in a build without LZ4.
absl::StatusOr<std::unique_ptr<Codec>> MakeLosslessLz4Codec();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_LOSSLESS_CODEC_H_
