// F16: IEEE 754 binary16, "half precision".
//
//   F16 x(0.1f);
//   float y = static_cast<float>(x);  // 0.09997559
//
// 5 exponent and 10 mantissa bits: 11 significant bits, largest value 65504,
// smallest normal 2^-14, smallest subnormal 2^-24. Values from 65520 on become
// infinities. base/dtype/small_float.h has the members.
#ifndef TESSERA_BASE_DTYPE_FLOAT16_H_
#define TESSERA_BASE_DTYPE_FLOAT16_H_

#include "base/dtype/float_format.h"
#include "base/dtype/small_float.h"

namespace tessera {

using F16 = SmallFloat<FloatFormat<5, 10, /*has_infinity=*/true>>;

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_FLOAT16_H_
