// F8E4M3 and F8E5M2: the two 8-bit floating-point formats of the Open Compute
// Project.
//
//   F8E4M3 weight = F8E4M3::Saturated(x / scale);
//   F8E5M2 gradient(y / scale);
//
// F8E4M3 is the "fn" format: no infinities, NaN is 0x7f and 0xff, largest value
// 448, smallest normal 2^-6, smallest subnormal 2^-9. The constructor rounds
// what lies past 464 to NaN (464 itself is a tie and goes to 448), as PyTorch's
// float8_e4m3fn does; Saturated() gives 448.
//
// F8E5M2 is IEEE-like, the upper byte of an F16: largest value 57344, smallest
// normal 2^-14, smallest subnormal 2^-16; values from 61440 on become
// infinities.
//
// Source: OCP 8-bit Floating Point Specification (OFP8) 1.0.
#ifndef TESSERA_BASE_DTYPE_FLOAT8_H_
#define TESSERA_BASE_DTYPE_FLOAT8_H_

#include "base/dtype/float_format.h"
#include "base/dtype/small_float.h"

namespace tessera {

using F8E4M3 = SmallFloat<FloatFormat<4, 3, /*has_infinity=*/false>>;
using F8E5M2 = SmallFloat<FloatFormat<5, 2, /*has_infinity=*/true>>;

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_FLOAT8_H_
