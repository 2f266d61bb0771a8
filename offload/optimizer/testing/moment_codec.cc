#include "offload/optimizer/testing/moment_codec.h"

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_runner.h"

namespace tessera::offload {
namespace {

absl::Status Check(const MomentSpan& moment, size_t values) {
  TESSERA_RETURN_IF_ERROR(CheckMomentFormat(moment.format));
  if (moment.format.type == MomentType::kF64) {
    return absl::InvalidArgumentError(
        "f64 moments are not read or written as f32: they are their own "
        "values");
  }
  if (static_cast<int64_t>(values) == moment.size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      values, " values for ", moment.size, " moments; give as many"));
}

}  // namespace

absl::Status ReadMoments(const MomentSpan& moment, MomentSign sign,
                         std::span<float> values) {
  TESSERA_RETURN_IF_ERROR(Check(moment, values.size()));
  DecodeMoments(PointerTo(moment), sign == MomentSign::kSigned, moment.size,
                values.data());
  return absl::OkStatus();
}

absl::Status WriteMoments(std::span<const float> values, MomentSign sign,
                          const MomentSpan& moment) {
  TESSERA_RETURN_IF_ERROR(Check(moment, values.size()));
  EncodeMoments(PointerTo(moment), sign == MomentSign::kSigned, moment.size,
                values.data());
  return absl::OkStatus();
}

}  // namespace tessera::offload
