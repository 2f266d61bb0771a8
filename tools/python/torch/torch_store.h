// Adapts the key-value store of a torch process group to Store, through which
// the ranks of a Tessera group find each other.
//
// torch's stores do not report dead ranks; waits for a dead rank end at the
// deadline.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_
#define TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"

namespace tessera::torch_backend {

class TorchStore final : public collectives::Store {
 public:
  // Opens its own connection, so that waits do not block other users of
  // `store`.
  TorchStore(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size)
      : store_(store->clone()), rank_(rank), size_(size) {
    store_->set(absl::StrCat(kJoined, rank), "joined");
  }

  collectives::Rank rank() const override { return collectives::Rank(rank_); }
  int64_t size() const override { return size_; }

  absl::Status SetFor(int64_t /*reads*/, std::string_view key,
                      std::string_view value, absl::Time) override {
    return Try(key, [&] { store_->set(std::string(key), std::string(value)); });
  }

  absl::StatusOr<std::string> GetFrom(collectives::Rank, std::string_view key,
                                      absl::Time deadline) override {
    std::string value;
    const absl::Status status = Try(key, [&] {
      store_->wait({std::string(key)}, TimeLeft(deadline));
      const std::vector<uint8_t> bytes = store_->get(std::string(key));
      value.assign(bytes.begin(), bytes.end());
    });
    if (!status.ok()) return status;
    return value;
  }

  absl::Status Erase(std::string_view prefix,
                     std::span<const collectives::Rank> ranks,
                     absl::Time) override {
    return Try(prefix, [&] {
      for (const collectives::Rank rank : ranks) {
        store_->deleteKey(absl::StrCat(prefix, rank.value()));
      }
    });
  }

  absl::StatusOr<collectives::MissingMembers> AwaitAll(
      std::string_view prefix, std::span<const collectives::Rank> ranks,
      absl::Time deadline) override {
    if (prefix.empty()) prefix = kJoined;
    std::vector<std::string> keys;
    for (const collectives::Rank rank : ranks) {
      keys.push_back(absl::StrCat(prefix, rank.value()));
    }
    collectives::MissingMembers missing;
    if (Try(prefix, [&] { store_->wait(keys, TimeLeft(deadline)); }).ok()) {
      return missing;
    }
    const absl::Status status = Try(prefix, [&] {
      for (size_t i = 0; i < keys.size(); ++i) {
        if (store_->check({keys[i]})) continue;
        ++missing.count;
        if (missing.named.size() < collectives::MissingMembers::kMaxNamed) {
          missing.named.push_back({.rank = ranks[i]});
        }
      }
    });
    if (!status.ok()) return status;
    return missing;
  }

 private:
  static constexpr std::string_view kJoined = "joined/";

  template <typename Function>
  static absl::Status Try(std::string_view key, const Function& function) {
    try {
      function();
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return absl::DeadlineExceededError(
          absl::StrCat("torch's store, key ", key, ": ", error.what()));
    }
  }

  static std::chrono::milliseconds TimeLeft(absl::Time deadline) {
    constexpr std::chrono::hours kDay(24);
    const absl::Duration left = deadline - absl::Now();
    if (left > absl::FromChrono(kDay)) return kDay;
    return std::max(std::chrono::milliseconds(1),
                    absl::ToChronoMilliseconds(left));
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
};

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_
