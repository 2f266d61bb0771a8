// The int8 codec: blocks of 128 floats as integers of -127 to 127 and a scale.
//
//   std::unique_ptr<Codec> codec = MakeInt8Codec();
//
// The scale is the block's largest magnitude, in f32; a value is held as
// value * 127 / scale, to the nearest integer, ties to even. The largest
// magnitude comes back exact, and so does a block that was decoded before:
// encoding it again gives the same bytes, values do not drift. Infinities, NaN
// and f64 values past the range of float are refused. Floats of one byte and
// integers are held as they are.
//
// Dettmers et al., "8-bit Optimizers via Block-wise Quantization",
// arXiv 2110.02861, section 2, with the linear map instead of the dynamic one.
#ifndef TESSERA_OFFLOAD_CODEC_INT8_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_INT8_CODEC_H_

#include <memory>

#include "offload/codec/codec_interface.h"

namespace tessera::offload {

// A byte an element, and 4 a block. The error is 1/254 of the block's largest
// magnitude, and what rounding to the dtype adds.
std::unique_ptr<Codec> MakeInt8Codec();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_INT8_CODEC_H_
