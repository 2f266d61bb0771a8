// Adapts the key-value store of a torch process group to Store, through which
// the ranks of a Tessera group find each other.
//
// torch's stores do not report dead ranks; waits for a dead rank end at the
// deadline. Waits poll, so that they neither block other users of the store's
// connection nor need a connection of their own, which takes seconds where
// reverse lookups of addresses are slow.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_
#define TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>
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
#include "tools/python/torch/process_group.h"

namespace tessera::torch_backend {

// Waits until all keys are set; returns false at the deadline.
inline bool Await(c10d::Store& store, const std::vector<std::string>& keys,
                  absl::Time deadline) {
  absl::Duration pause = absl::Microseconds(100);
  while (!store.check(keys)) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(5));
  }
  return true;
}

class TorchStore final : public collectives::Store {
 public:
  TorchStore(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)),
        prefix_(StorePrefix(
            std::getenv("TORCHELASTIC_RESTART_COUNT"),
            [this](const std::string& key) { return store_->add(key, 1); },
            rank)),
        rank_(rank),
        size_(size) {
    store_->set(absl::StrCat(prefix_, kJoined, rank), "joined");
  }

  collectives::Rank rank() const override { return collectives::Rank(rank_); }
  int64_t size() const override { return size_; }

  absl::Status SetFor(int64_t /*reads*/, std::string_view key,
                      std::string_view value, absl::Time) override {
    return Try(key, [&] {
      store_->set(absl::StrCat(prefix_, key), std::string(value));
    });
  }

  absl::StatusOr<std::string> GetFrom(collectives::Rank, std::string_view key,
                                      absl::Time deadline) override {
    const std::string name = absl::StrCat(prefix_, key);
    std::string value;
    const absl::Status status = Try(key, [&] {
      if (!Await(*store_, {name}, deadline)) {
        throw std::runtime_error("it was not set in time");
      }
      value = store_->get_to_str(name);
    });
    if (!status.ok()) return status;
    return value;
  }

  absl::Status Erase(std::string_view prefix,
                     std::span<const collectives::Rank> ranks,
                     absl::Time) override {
    return Try(prefix, [&] {
      for (const collectives::Rank rank : ranks) {
        store_->deleteKey(absl::StrCat(prefix_, prefix, rank.value()));
      }
    });
  }

  absl::StatusOr<collectives::MissingMembers> AwaitAll(
      std::string_view prefix, std::span<const collectives::Rank> ranks,
      absl::Time deadline) override {
    if (prefix.empty()) prefix = kJoined;
    std::vector<std::string> keys;
    for (const collectives::Rank rank : ranks) {
      keys.push_back(absl::StrCat(prefix_, prefix, rank.value()));
    }
    collectives::MissingMembers missing;
    const absl::Status status = Try(prefix, [&] {
      if (Await(*store_, keys, deadline)) return;
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

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
};

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_
