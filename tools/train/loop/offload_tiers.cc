#include "tools/train/loop/offload_tiers.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "offload/pressure/pressure_policy.h"
#include "offload/tier/cuda_pinning.h"
#include "offload/tier/pinned_arena.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {
namespace {

constexpr std::string_view kFile = "file";

}  // namespace

absl::StatusOr<std::unique_ptr<OffloadTiers>> OffloadTiers::Create(
    const Settings& settings, std::shared_ptr<TierLog> log) {
  std::unique_ptr<OffloadTiers> tiers(new OffloadTiers(settings));
  if (settings.offload == "none") return tiers;
  if (!settings.offload_dir.empty()) {
    TESSERA_RETURN_IF_ERROR(tiers->MakeDirectory(settings.offload_dir));
  }
  TESSERA_RETURN_IF_ERROR(
      tiers->CreateTier(settings, std::move(log)),
      Annotate(_, absl::StrCat(
                      "--offload=", settings.offload,
                      " --offload_dir=", settings.offload_dir,
                      " --host_budget=", FormatByteLimit(settings.host_budget),
                      " --compression=", settings.compression)));
  return tiers;
}

OffloadTiers::OffloadTiers(const Settings& settings)
    : config_(OffloadConfigOf(settings)),
      offloads_activations_(OffloadChoice::Of(settings.offload).activations),
      buffers_(std::make_shared<offload::Accounting>("file buffers",
                                                     offload::kUnlimited)) {}

OffloadTiers::~OffloadTiers() {
  tier_.reset();
  made_ = {};
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
  const bool on_gpu = absl::StartsWith(settings.device, "cuda");
  TESSERA_ASSIGN_OR_RETURN(
      made_,
      zero3::MakeOffloadTier(
          config_, settings.parallel.dtype,
          {.pinning = on_gpu ? offload::CudaPinning() : offload::MlockPinning(),
           .file_buffers = buffers_}));
  tier_ = std::make_unique<TimedTier>(made_.tier, std::move(log));
  return absl::OkStatus();
}

void OffloadTiers::AddTo(RunOptions& options) const {
  zero3::AddTo(options.state, config_, tier_.get());
  if (offloads_activations_) options.activation_tier = tier_.get();
}

absl::Status OffloadTiers::pin_status() const {
  return made_.arena == nullptr ? absl::OkStatus() : made_.arena->pin_status();
}

absl::StatusOr<int64_t> OffloadTiers::Relieve(
    const offload::MemoryReading& reading) {
  if (made_.spill == nullptr) return 0;
  return made_.spill->Relieve(offload::PressurePolicy::Of(config_.strategy),
                              reading);
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
