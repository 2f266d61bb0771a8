#include "collectives/gloo/store_adapter.h"

#include <cctype>
#include <optional>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

// A key without the number at its end.
std::string_view StemOf(std::string_view key) {
  while (!key.empty() && std::isdigit(static_cast<unsigned char>(key.back()))) {
    key.remove_suffix(1);
  }
  return key;
}

std::optional<int64_t> NumberAtEnd(std::string_view key) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(key.substr(StemOf(key).size()), &number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

void StoreAdapter::set(const std::string& key, const std::vector<char>& data) {
  const absl::Status status =
      store_.SetFor(/*reads=*/0, absl::StrCat(prefix_, key),
                    std::string_view(data.data(), data.size()), deadline_);
  if (!status.ok()) throw StoreError(status);
  set_keys_.push_back(key);
}

std::vector<char> StoreAdapter::get(const std::string& key) {
  const std::optional<int64_t> number = NumberAtEnd(key);
  const bool known =
      number.has_value() && *number < static_cast<int64_t>(members_.size());
  const Rank owner = known ? members_[static_cast<size_t>(*number)]
                           : collectives::Store::kAnyRank;
  const absl::StatusOr<std::string> value =
      store_.GetFrom(owner, absl::StrCat(prefix_, key), deadline_);
  if (!value.ok()) throw StoreError(value.status());
  return {value->begin(), value->end()};
}

absl::Status StoreAdapter::Erase() {
  for (const std::string& key : set_keys_) {
    const std::optional<int64_t> number = NumberAtEnd(key);
    if (!number.has_value()) continue;
    const Rank rank(*number);
    TESSERA_RETURN_IF_ERROR(store_.Erase(absl::StrCat(prefix_, StemOf(key)),
                                         {&rank, 1}, deadline_));
  }
  set_keys_.clear();
  return absl::OkStatus();
}

}  // namespace tessera::collectives
