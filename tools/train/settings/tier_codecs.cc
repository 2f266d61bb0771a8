#include "tools/train/settings/tier_codecs.h"

#include "base/dtype/dtype.h"
#include "offload/codec/codec.h"

namespace tessera::train {
namespace {

using offload::Purpose;

DType TypeOf(const Settings& settings, Purpose purpose) {
  return purpose == Purpose::kParameters &&
                 settings.parallel.dtype == DType::kBF16
             ? DType::kBF16
             : DType::kF32;
}

bool Rounds(std::string_view codec, DType dtype) {
  const auto made = offload::CreateCodec(codec);
  return made.ok() && !(*made)->IsLossless(dtype);
}

bool IsOffloaded(const Settings& settings, Purpose purpose) {
  if (settings.offload == "all") return true;
  return (settings.offload == "params" && purpose == Purpose::kParameters) ||
         (settings.offload == "optimizer" && purpose == Purpose::kOptimizer);
}

}  // namespace

std::string TierCodecName(const Settings& settings, Purpose purpose) {
  const bool may_round = purpose == Purpose::kGradients ||
                         (purpose == Purpose::kParameters &&
                          settings.parallel.dtype == DType::kBF16);
  return may_round || !Rounds(settings.compression, DType::kF32)
             ? settings.compression
             : "lossless";
}

bool TierCodecRounds(const Settings& settings, Purpose purpose) {
  return IsOffloaded(settings, purpose) &&
         Rounds(TierCodecName(settings, purpose), TypeOf(settings, purpose));
}

}  // namespace tessera::train
