// The factories of all codecs. lossy_codec.cc has the codecs that round:
// narrower floats (fp16, bf16), 8-bit integers (int8) and 4-bit NormalFloat
// (nf4); and the codec that stores values unchanged (none). lossless_codec.cc
// has the lossless codecs.
//
//   std::unique_ptr<Codec> codec = MakeFp16Codec();
//
// Internal to offload/codec; users call CreateCodec.
#ifndef TESSERA_OFFLOAD_CODEC_CODECS_H_
#define TESSERA_OFFLOAD_CODEC_CODECS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "offload/codec/codec.h"

namespace tessera::offload {

// Stores the values unchanged, after the header of every encoding.
std::unique_ptr<Codec> MakeNoneCodec();

// Stores f32 and f64 in 2 bytes an element, all other types unchanged. fp16 has
// errors up to the larger of 2^-11 of the value and 2^-25, and represents
// values up to 65504; bf16 has errors up to 2^-8 of the value, over the range
// of float.
//
// Rounds to nearest, ties to even, once: f64 is converted to 16 bits directly.
// Infinities are preserved, NaN stays NaN (quiet, with its sign). A finite
// value that would become infinite is rejected.
std::unique_ptr<Codec> MakeFp16Codec();
std::unique_ptr<Codec> MakeBf16Codec();

// Stores blocks of 128 floats as integers from -127 to 127 and a scale: 1 byte
// an element and 4 a block. The error is 1/254 of the block's largest
// magnitude, plus the rounding to the dtype.
//
// The scale is the block's largest magnitude, in f32; a value is stored as
// value * 127 / scale, rounded to the nearest integer, ties to even. The
// largest magnitude is restored exactly. Encoding a decoded block again results
// in the same bytes, so values do not drift. Infinities, NaN and f64 values
// outside the range of float are rejected. Floats of one byte and integers are
// stored unchanged.
//
// Dettmers et al., "8-bit Optimizers via Block-wise Quantization",
// arXiv 2110.02861, section 2, with the linear map instead of the dynamic one.
std::unique_ptr<Codec> MakeInt8Codec();

enum class Nf4Scales {
  kFloat,   // "nf4": 4.5 bits an element.
  kDouble,  // "nf4_double": 4.127 bits an element.
};

// Stores blocks of 64 floats as 4-bit NormalFloat: the 16 levels are quantiles
// of the normal distribution, which weights nearly follow. The error is 0.152
// of the block's largest magnitude (half the widest gap between levels), with
// kDouble plus 1/254 of the largest of 16384 elements, plus the rounding to the
// dtype.
//
// A value is stored as the level nearest to value / scale, the lower of two
// equally near. The scale is the block's largest magnitude in f32; that
// magnitude is restored exactly, and encoding decoded values results in the
// same bytes. With kDouble, scales are stored in 8 bits (QuantizeScales) and
// levels are chosen for the decoded scale; repeated encoding may then drift.
// Infinities, NaN and f64 values outside the range of float are rejected.
// Integers are stored unchanged.
//
// Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs",
// arXiv 2305.14314, section 3 and appendix E.
std::unique_ptr<Codec> MakeNf4Codec(Nf4Scales scales);

// The lossless codecs: every bit of every input is restored.
//
// Elements are cut into independent frames of 64 Ki, a frame into byte planes
// (offload/codec/byte_planes.h). A plane of one repeated byte is stored as that
// byte, a plane that an entropy coder shrinks as the coder's output, and any
// other plane unchanged. So an encoding exceeds the values by at most 4 bytes
// per plane and frame. Each concurrent call needs working memory for the planes
// of one frame and the coder's context.
//
// The exponents of weights compress to 2.6 of 8 bits, their mantissas not at
// all: Hershcovitch et al., "ZipNN: Lossless Compression for AI Models",
// arXiv 2411.05239.
//
// MakeLosslessCodec encodes with zstd, or with the window code in a build
// without zstd. Each lossless codec decodes what the others encode;
// Unimplemented if the build does not have the library.
std::unique_ptr<Codec> MakeLosslessCodec();

// Encodes with the window code (EncodeWindow, plane_coder.h), which needs no
// library: 3.2 bits for the exponent of a weight, several times as fast.
std::unique_ptr<Codec> MakeLosslessFastCodec();

// Encodes with LZ4, which has no entropy coder and is suited to repetitive
// planes. Unimplemented in a build without LZ4.
absl::StatusOr<std::unique_ptr<Codec>> MakeLosslessLz4Codec();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_CODECS_H_
