#include "tools/train/loop/offload_tiers.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {
namespace {

constexpr std::string_view kFile = "file";

std::shared_ptr<offload::Accounting> CountedAs(std::string_view name) {
  return std::make_shared<offload::Accounting>(std::string(name),
                                               offload::kUnlimited);
}

// Compresses each purpose with the codec that TierCodecName allows.
absl::StatusOr<std::shared_ptr<offload::MemoryTier>> Compressed(
    const Settings& settings, std::shared_ptr<offload::MemoryTier> base) {
  TESSERA_ASSIGN_OR_RETURN(auto codec,
                           offload::CreateCodec(settings.compression));
  offload::CompressedTier::Options options;
  for (const offload::Purpose purpose : offload::kAllPurposes) {
    TESSERA_ASSIGN_OR_RETURN(
        options.codec_of[static_cast<size_t>(purpose)],
        offload::CreateCodec(TierCodecName(settings, purpose)));
  }
  return std::make_shared<offload::CompressedTier>(
      std::move(codec), std::move(base), std::move(options));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OffloadTiers>> OffloadTiers::Create(
    const Settings& settings, std::shared_ptr<TierLog> log) {
  std::unique_ptr<OffloadTiers> tiers(new OffloadTiers(settings));
  if (settings.offload == "none") return tiers;
  if (!settings.offload_dir.empty()) {
    TESSERA_RETURN_IF_ERROR(
        tiers->MakeDirectory(UserPath(settings.offload_dir)));
  }
  TESSERA_RETURN_IF_ERROR(
      tiers->CreateTier(settings, std::move(log)),
      Annotate(_, absl::StrCat("--offload=", settings.offload,
                               " --offload_dir=", settings.offload_dir,
                               " --compression=", settings.compression)));
  return tiers;
}

OffloadTiers::OffloadTiers(const Settings& settings)
    : offload_(OffloadChoice::Of(settings.offload)),
      buffers_(CountedAs("file buffers")) {}

OffloadTiers::~OffloadTiers() {
  tier_.reset();
  for (const std::string& path : made_directories_) {
    std::error_code ignored;  // The directory may contain other files.
    std::filesystem::remove(path, ignored);
  }
}

absl::Status OffloadTiers::MakeDirectory(const std::string& path) {
  std::filesystem::path missing = path;
  std::error_code error;
  while (!missing.empty() && !std::filesystem::exists(missing, error)) {
    made_directories_.push_back(missing.string());
    missing = missing.parent_path();
  }
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--offload_dir=", path, " cannot be created: ", error.message(),
      "; give a writable directory"));
}

absl::Status OffloadTiers::CreateTier(const Settings& settings,
                                      std::shared_ptr<TierLog> log) {
  std::shared_ptr<offload::MemoryTier> tier;
  if (settings.offload_dir.empty()) {
    tier = std::make_shared<offload::HostTier>(CountedAs("host"));
  } else {
    TESSERA_ASSIGN_OR_RETURN(
        tier, offload::FileTier::Create(CountedAs(kFile),
                                        {.path = UserPath(settings.offload_dir),
                                         .bounce_accounting = buffers_}));
  }
  if (settings.compression != "none") {
    TESSERA_ASSIGN_OR_RETURN(tier, Compressed(settings, std::move(tier)));
  }
  tier_ = std::make_unique<TimedTier>(std::move(tier), std::move(log));
  return absl::OkStatus();
}

void OffloadTiers::AddTo(RunOptions& options) const {
  zero3::ShardedStateOptions& state = options.state;
  if (offload_.optimizer) state.optimizer_tier = tier_.get();
  if (offload_.parameters && state.stage == 3) {
    state.parameter_tier = tier_.get();
  }
  if (offload_.gradients && state.stage >= 2) state.gradient_tier = tier_.get();
  if (offload_.activations) options.activation_tier = tier_.get();
}

BytesByPurpose OffloadTiers::Peaks(bool of_file) const {
  BytesByPurpose bytes = {};
  if (tier_ == nullptr) return bytes;
  for (const offload::TierUsage& one : tier_->usage()) {
    if ((one.tier == kFile) != of_file) continue;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] += one.usage.parts[i].peak;
    }
  }
  return bytes;
}

BytesByPurpose OffloadTiers::host_bytes() const {
  BytesByPurpose bytes = Peaks(/*of_file=*/false);
  bytes[static_cast<size_t>(offload::Purpose::kBuffers)] +=
      buffers_->usage().peak;
  return bytes;
}

BytesByPurpose OffloadTiers::file_bytes() const {
  return Peaks(/*of_file=*/true);
}

}  // namespace tessera::train
