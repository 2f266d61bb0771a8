// NarrowCodec: floats in a narrower floating-point type, or values as they are.
//
//   std::unique_ptr<Codec> codec = MakeFp16Codec();
//
// Rounds to nearest, ties to even, once: f64 goes to 16 bits directly.
// Infinities stay, NaN stays NaN (quiet, sign kept). A finite value that would
// become an infinity is refused: it would be wrong without notice. f32 and f64
// alone are narrowed; everything else is held as it is.
#ifndef TESSERA_OFFLOAD_CODEC_NARROW_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_NARROW_CODEC_H_

#include <memory>

#include "offload/codec/codec_interface.h"

namespace tessera::offload {

// Values as they are, behind the header that every encoding has.
std::unique_ptr<Codec> MakeNoneCodec();

// 2 bytes an element. fp16 has errors of 2^-11 of the value, or 2^-25 where
// that is more, and holds up to 65504; bf16 of 2^-8, over the range of float.
std::unique_ptr<Codec> MakeFp16Codec();
std::unique_ptr<Codec> MakeBf16Codec();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_NARROW_CODEC_H_
