#include "tools/train/settings/tier_codecs.h"

#include "base/dtype/dtype.h"
#include "offload/codec/codec.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {
namespace {

using offload::Purpose;

DType TypeOf(const Settings& settings, Purpose purpose) {
  const bool is_narrow =
      purpose == Purpose::kParameters || purpose == Purpose::kActivations;
  return is_narrow && settings.parallel.dtype == DType::kBF16 ? DType::kBF16
                                                              : DType::kF32;
}

bool Rounds(std::string_view codec, DType dtype) {
  const auto made = offload::CreateCodec(codec);
  return made.ok() && !(*made)->IsLossless(dtype);
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
  return OffloadChoice::Of(settings.offload).has(purpose) &&
         Rounds(TierCodecName(settings, purpose), TypeOf(settings, purpose));
}

}  // namespace tessera::train
