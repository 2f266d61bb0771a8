#include "offload/tier/accounting.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {
namespace {

void Grow(Usage::Part& part, int64_t bytes) {
  part.current += bytes;
  part.peak = std::max(part.peak, part.current);
}

Usage::Part& PartOf(Usage& usage, Purpose purpose) {
  return usage.parts[static_cast<size_t>(purpose)];
}

}  // namespace

Accounting::Accounting(std::string name, int64_t budget)
    : name_(std::move(name)) {
  usage_.budget = std::max<int64_t>(budget, 0);
}

absl::StatusOr<Reservation> Accounting::Reserve(
    std::shared_ptr<Accounting> accounting, std::string_view key, int64_t bytes,
    Purpose purpose) {
  TESSERA_RETURN_IF_ERROR(accounting->Add(key, bytes, purpose));
  return Reservation(std::move(accounting), bytes, purpose);
}

absl::Status Accounting::Add(std::string_view key, int64_t bytes,
                             Purpose purpose) {
  absl::MutexLock lock(&mutex_);
  if (bytes < 0 || !IsValid(purpose)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tier ", name_, ": cannot count ", bytes, " bytes of purpose ",
        PurposeName(purpose),
        "; bytes must be at least 0, purposes are listed in ", "accounting.h"));
  }
  if (bytes > usage_.budget - usage_.current) {
    return Refusal(key, bytes, purpose);
  }
  usage_.current += bytes;
  usage_.peak = std::max(usage_.peak, usage_.current);
  Grow(PartOf(usage_, purpose), bytes);
  return absl::OkStatus();
}

absl::Status Accounting::Refusal(std::string_view key, int64_t bytes,
                                 Purpose purpose) const {
  const std::string block = absl::StrCat(
      "tier ", name_, ": block \"", absl::CHexEscape(key.substr(0, 64)),
      key.size() > 64 ? "...\"" : "\"", " (", PurposeName(purpose),
      ") asks for ", bytes, " bytes");
  if (bytes > usage_.budget) {
    return absl::ResourceExhaustedError(absl::StrCat(
        block, ", more than the whole budget of ", usage_.budget,
        " bytes: it never fits. Raise the budget, split the block, or put it "
        "into a lower tier"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      block, "; ", usage_.current, " of the budget of ", usage_.budget,
      " bytes are in use, ", usage_.budget - usage_.current,
      " are free. Drop blocks, raise the budget, or put the block into a "
      "lower tier"));
}

void Accounting::Remove(int64_t bytes, Purpose purpose) {
  absl::MutexLock lock(&mutex_);
  usage_.current -= bytes;
  PartOf(usage_, purpose).current -= bytes;
}

void Accounting::Move(int64_t bytes, Purpose from, Purpose to) {
  absl::MutexLock lock(&mutex_);
  PartOf(usage_, from).current -= bytes;
  Grow(PartOf(usage_, to), bytes);
}

Usage Accounting::usage() const {
  absl::MutexLock lock(&mutex_);
  return usage_;
}

void Accounting::ResetPeaks() {
  absl::MutexLock lock(&mutex_);
  usage_.peak = usage_.current;
  for (Usage::Part& part : usage_.parts) part.peak = part.current;
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  accounting_ = std::move(other.accounting_);
  bytes_ = std::exchange(other.bytes_, 0);
  purpose_ = other.purpose_;
  return *this;
}

absl::Status Reservation::Resize(std::string_view key, int64_t bytes) {
  if (accounting_ == nullptr || bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a reservation of ", bytes_, " bytes cannot become one of ", bytes,
        ": it must come from Reserve, and sizes are at least 0"));
  }
  if (bytes > bytes_) {
    TESSERA_RETURN_IF_ERROR(accounting_->Add(key, bytes - bytes_, purpose_));
  } else {
    accounting_->Remove(bytes_ - bytes, purpose_);
  }
  bytes_ = bytes;
  return absl::OkStatus();
}

void Reservation::SetPurpose(Purpose purpose) {
  if (accounting_ != nullptr && IsValid(purpose)) {
    accounting_->Move(bytes_, purpose_, purpose);
    purpose_ = purpose;
  }
}

void Reservation::Release() {
  if (accounting_ == nullptr) return;
  accounting_->Remove(bytes_, purpose_);
  accounting_.reset();
  bytes_ = 0;
}

}  // namespace tessera::offload
