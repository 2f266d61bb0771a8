#include "zero3/state/values/use_guard.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/parameters/use/divergence.h"
#include "zero3/parameters/use/order_hash.h"

namespace tessera::zero3 {
namespace {

// What a rank tells of a window: its hash, its length and its first ids.
constexpr size_t kHash = 0, kLength = 1, kFirstId = 2, kIds = 14;
constexpr size_t kWords = kFirstId + kIds;

std::vector<int64_t> Describe(std::span<const ParameterId> window) {
  OrderHash hash;
  for (ParameterId id : window) hash.Record(id);
  std::vector<int64_t> words(kWords, -1);
  words[kHash] = static_cast<int64_t>(hash.hash());
  words[kLength] = static_cast<int64_t>(window.size());
  for (size_t i = 0; i < std::min(window.size(), kIds); ++i) {
    words[kFirstId + i] = window[i].value();
  }
  return words;
}

std::optional<ParameterId> IdAt(std::span<const int64_t> words, size_t index) {
  if (index >= kIds || words[kFirstId + index] < 0) return std::nullopt;
  return ParameterId(words[kFirstId + index]);
}

}  // namespace

absl::Status UseGuard::Use(std::span<const ParameterId> window) {
  for (ParameterId id : window) {
    TESSERA_RETURN_IF_ERROR(model_.CheckId(id));
  }
  TESSERA_RETURN_IF_ERROR(agreed_ ? Follow(window) : Agree(window));
  if (!agreed_) order_.Use(window);
  ++position_;
  return absl::OkStatus();
}

absl::Status UseGuard::EndStep() {
  TESSERA_RETURN_IF_ERROR(agreed_ ? Follow({}) : Agree({}));
  agreed_ = true;
  position_ = 0;
  return absl::OkStatus();
}

absl::Status UseGuard::Agree(std::span<const ParameterId> window) {
  message_ = Describe(window);
  const auto ranks = static_cast<size_t>(group_.size());
  messages_.resize(ranks * kWords);
  TESSERA_RETURN_IF_ERROR(group_.AllGather(
      collectives::ConstBuffer(std::span<const int64_t>(message_)),
      collectives::Buffer(std::span(messages_))));
  const auto words_of = [this](size_t rank) {
    return std::span<const int64_t>(messages_).subspan(rank * kWords, kWords);
  };
  const auto all_have = [&](size_t index) {
    for (size_t r = 1; r < ranks; ++r) {
      if (words_of(r)[index] != words_of(0)[index]) return false;
    }
    return true;
  };
  if (all_have(kHash) && all_have(kLength)) return absl::OkStatus();
  size_t first = 0;
  while (first < kIds && all_have(kFirstId + first)) ++first;
  std::vector<UseAt> uses;
  for (size_t r = 0; r < ranks; ++r) {
    uses.push_back({IdAt(words_of(r), first), IdAt(words_of(r), first + 1)});
  }
  absl::Status error =
      DivergenceError(order_.uses().size() + first, uses, model_);
  if (error.ok()) {
    error = absl::FailedPreconditionError(absl::StrCat(
        "ranks use different parameters in window ", position_, ", behind its ",
        kIds, "th; every rank must use the same, in the same order"));
  }
  return BreakAll(std::move(error));
}

absl::Status UseGuard::Follow(std::span<const ParameterId> window) {
  const std::span<const ParameterId> agreed =
      position_ < order_.windows() ? order_.window(position_)
                                   : std::span<const ParameterId>();
  if (std::equal(window.begin(), window.end(), agreed.begin(), agreed.end())) {
    return absl::OkStatus();
  }
  const auto [mine, theirs] =
      std::mismatch(window.begin(), window.end(), agreed.begin(), agreed.end());
  const auto at = [](auto it, auto end) {
    return it == end ? std::nullopt : std::optional<ParameterId>(*it);
  };
  return BreakAll(absl::FailedPreconditionError(absl::StrCat(
      "rank ", group_.rank().value(), " of ", group_.name(), " uses ",
      NameOf(at(mine, window.end())), " in window ", position_,
      " of the step (counted from 0), where in the first step all ranks used ",
      NameOf(at(theirs, agreed.end())),
      "; every rank must use the same parameters in the same order in every "
      "step")));
}

std::string UseGuard::NameOf(std::optional<ParameterId> id) const {
  if (!id) return "nothing more";
  return absl::StrCat("parameter ", id->value(), " \"", model_[*id].name(),
                      "\"");
}

absl::Status UseGuard::BreakAll(absl::Status reason) {
  group_.Abort(reason.message());
  for (collectives::Communicator* other : others_) {
    other->Abort(reason.message());
  }
  return reason;
}

}  // namespace tessera::zero3
