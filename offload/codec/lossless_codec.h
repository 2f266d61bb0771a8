// The lossless codec: every bit of every input comes back.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec,
//   MakeLosslessCodec());
//
// Elements are cut into independent frames of 64 Ki, a frame into byte planes
// (offload/codec/byte_planes.h). A plane of one repeated byte is held
// as that byte, one that an entropy coder shrinks as its output, and any other
// as it is: an encoding is at most 4 bytes a plane and frame longer than the
// values. Working memory: planes of one frame, and the coder's context, for
// each call at the same time.
//
// That weights leave 2.6 of the 8 exponent bits, and their mantissas nothing:
// Hershcovitch et al., "ZipNN: Lossless Compression for AI Models",
// arXiv 2411.05239.
#ifndef TESSERA_OFFLOAD_CODEC_LOSSLESS_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_LOSSLESS_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "offload/codec/codec_interface.h"

namespace tessera::offload {

// By zstd; in a build without it, by the window code. Each of these codecs
// decodes whatever the build has the library for, and is Unimplemented for the
// rest.
std::unique_ptr<Codec> MakeLosslessCodec();

// By the window code (offload/codec/window_code.h), which needs no
// library: 3.2 bits for the exponent of a weight, several times faster.
std::unique_ptr<Codec> MakeLosslessFastCodec();

// By LZ4, which has no entropy coder: for planes that repeat. Unimplemented in
// a build without LZ4.
absl::StatusOr<std::unique_ptr<Codec>> MakeLosslessLz4Codec();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_LOSSLESS_CODEC_H_
