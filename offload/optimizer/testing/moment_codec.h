// For tests: converts moments of any format to f32 and back, like a step.
//
//   std::vector<float> m(n);
//   TESSERA_RETURN_IF_ERROR(ReadMoments(moment, MomentSign::kSigned, m));
//   TESSERA_RETURN_IF_ERROR(WriteMoments(m, MomentSign::kSigned, other));
//
// Writing rounds to nearest. Values that were read are written back bit for bit
// (for 8-bit moments, if the largest magnitude of the block is among its
// values).
#ifndef TESSERA_OFFLOAD_OPTIMIZER_TESTING_MOMENT_CODEC_H_
#define TESSERA_OFFLOAD_OPTIMIZER_TESTING_MOMENT_CODEC_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/parameter_range.h"

namespace tessera::offload {

// 8-bit first moments are signed, second ones are not.
enum class MomentSign : uint8_t { kSigned, kUnsigned };

// InvalidArgument, with nothing written, if the lengths differ, a format is not
// valid or is f64, which needs no codec. A non-finite value makes its 8-bit
// block NaN; an unsigned block stores the magnitude of a negative value.
absl::Status ReadMoments(const MomentSpan& moment, MomentSign sign,
                         std::span<float> values);
absl::Status WriteMoments(std::span<const float> values, MomentSign sign,
                          const MomentSpan& moment);

// Converts elements [0, count) of a moment, not f64, to f32 and back.
// `is_signed`: a first moment.
void DecodeMoments(const MomentPointer& moment, bool is_signed, int64_t count,
                   float* values);
void EncodeMoments(const MomentPointer& moment, bool is_signed, int64_t count,
                   const float* values);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_TESTING_MOMENT_CODEC_H_
