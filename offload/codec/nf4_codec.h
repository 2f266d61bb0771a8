// The nf4 codec: blocks of 64 floats as 4-bit NormalFloat, whose 16 levels
// are quantiles of the normal distribution, which weights nearly follow.
//
//   std::unique_ptr<Codec> codec = MakeNf4Codec(Nf4Scales::kFloat);
//
// A value is held as the level nearest to value / scale, of two equally near
// the lower. The scale is the block's largest magnitude in f32; that magnitude
// comes back exact, and encoding what was decoded gives the same bytes. With
// kDouble scales are themselves held in 8 bits (scale_group.h), and levels are
// chosen for the scale that decoding will see; repeated encoding may then
// drift. Infinities, NaN and f64 values past the range of float are refused.
// Integers are held as they are.
//
// Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs",
// arXiv 2305.14314, section 3 and appendix E.
#ifndef TESSERA_OFFLOAD_CODEC_NF4_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_NF4_CODEC_H_

#include <memory>

#include "offload/codec/codec_interface.h"

namespace tessera::offload {

enum class Nf4Scales {
  kFloat,   // "nf4": 4.5 bits an element.
  kDouble,  // "nf4_double": 4.127 bits an element.
};

// The error is 0.152 of the block's largest magnitude, half the widest gap
// between levels; with kDouble, and 1/254 of the largest of 16384 elements;
// and what rounding to the dtype adds.
std::unique_ptr<Codec> MakeNf4Codec(Nf4Scales scales);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_NF4_CODEC_H_
