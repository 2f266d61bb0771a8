// BF16: bfloat16, the upper half of an IEEE 754 binary32.
//
//   BF16 x(3.14159f);
//   float y = static_cast<float>(x);  // 3.140625
//
// 8 exponent and 7 mantissa bits: 8 significant bits over the range of float,
// subnormals included. base/dtype/small_float.h has the members.
#ifndef TESSERA_BASE_DTYPE_BFLOAT16_H_
#define TESSERA_BASE_DTYPE_BFLOAT16_H_

#include "base/dtype/float_format.h"
#include "base/dtype/small_float.h"

namespace tessera {

using BF16 = SmallFloat<FloatFormat<8, 7, /*has_infinity=*/true>>;

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_BFLOAT16_H_
