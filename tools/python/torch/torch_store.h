// Adapts the key-value store of a torch process group to Store, through which
// the ranks of a Tessera group find each other.
//
// torch's stores do not report dead ranks; waits for a dead rank end at the
// deadline. Waits poll, so that they neither block other users of the store's
// connection nor need a connection of their own, which takes seconds where
// reverse lookups of addresses are slow.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_
#define TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/deadline.h"
#include "tools/python/torch/process_group.h"

namespace tessera::torch_backend {

// Waits until all keys are set; returns false at the deadline.
inline bool Await(c10d::Store& store, const std::vector<std::string>& keys,
                  absl::Time deadline) {
  const collectives::Deadline until(deadline);
  absl::Duration pause = absl::Microseconds(100);
  while (!store.check(keys)) {
    if (until.Expired()) return false;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(5));
  }
  return true;
}

class TorchStore final : public collectives::Store {
 public:
  // Fails at the deadline, and if the store does.
  static absl::StatusOr<std::unique_ptr<TorchStore>> Create(
      c10::intrusive_ptr<c10d::Store> store, int rank, int size,
      absl::Time deadline) {
    auto created = absl::WrapUnique(new TorchStore(store, rank, size));
    absl::StatusOr<std::string> prefix = created->Try(
        "joins", deadline, [rank](c10d::Store& store, const std::string&) {
          std::string prefix = StorePrefix(
              std::getenv("TORCHELASTIC_RESTART_COUNT"),
              [&](const std::string& key) { return store.add(key, 1); }, rank);
          store.set(
              absl::StrCat(prefix, kJoined, rank),
              collectives::DescribePlace(collectives::HostName(), getpid()));
          return prefix;
        });
    if (!prefix.ok()) return prefix.status();
    created->prefix_ = *std::move(prefix);
    return created;
  }

  collectives::Rank rank() const override { return collectives::Rank(rank_); }
  int64_t size() const override { return size_; }

  // A part of the store for another user.
  c10::intrusive_ptr<c10d::Store> WithPrefix(std::string_view prefix) const {
    return c10::make_intrusive<c10d::PrefixStore>(absl::StrCat(prefix_, prefix),
                                                  store_);
  }

  absl::Status SetFor(int64_t /*reads*/, std::string_view key,
                      std::string_view value, absl::Time deadline) override {
    return Try(key, deadline,
               [value = std::string(value)](c10d::Store& store,
                                            const std::string& name) {
                 store.set(name, value);
                 return true;
               })
        .status();
  }

  absl::StatusOr<std::string> GetFrom(collectives::Rank, std::string_view key,
                                      absl::Time deadline) override {
    return Try(key, deadline,
               [deadline](c10d::Store& store, const std::string& name) {
                 if (!Await(store, {name}, deadline)) {
                   throw std::runtime_error("it was not set in time");
                 }
                 return store.get_to_str(name);
               });
  }

  absl::Status Erase(std::string_view prefix,
                     std::span<const collectives::Rank> ranks,
                     absl::Time deadline) override {
    return Try(prefix, deadline,
               [ranks = std::vector(ranks.begin(), ranks.end())](
                   c10d::Store& store, const std::string& name) {
                 for (const collectives::Rank rank : ranks) {
                   store.deleteKey(absl::StrCat(name, rank.value()));
                 }
                 return true;
               })
        .status();
  }

  absl::StatusOr<collectives::MissingMembers> AwaitAll(
      std::string_view prefix, std::span<const collectives::Rank> ranks,
      absl::Time deadline) override {
    return Try(prefix.empty() ? kJoined : prefix, deadline,
               [joined = absl::StrCat(prefix_, kJoined),
                ranks = std::vector(ranks.begin(), ranks.end()),
                deadline](c10d::Store& store, const std::string& name) {
                 return MissingOf(store, name, joined, ranks, deadline);
               });
  }

 private:
  static constexpr std::string_view kJoined = "joined/";

  TorchStore(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  static collectives::MissingMembers MissingOf(
      c10d::Store& store, const std::string& name, const std::string& joined,
      const std::vector<collectives::Rank>& ranks, absl::Time deadline) {
    std::vector<std::string> keys;
    for (const collectives::Rank rank : ranks) {
      keys.push_back(absl::StrCat(name, rank.value()));
    }
    collectives::MissingMembers missing;
    if (Await(store, keys, deadline)) return missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (store.check({keys[i]})) continue;
      ++missing.count;
      if (missing.named.size() == collectives::MissingMembers::kMaxNamed) {
        continue;
      }
      collectives::JobMember& member = missing.named.emplace_back();
      member.rank = ranks[i];
      const std::string place = absl::StrCat(joined, ranks[i].value());
      if (!store.check({place})) continue;
      member.state = collectives::MemberState::kPresent;
      member.where = store.get_to_str(place);
    }
    return missing;
  }

  // Calls the function with the store and the key's name there, on a thread
  // that is left behind if it does not return: torch's stores may wait for as
  // long as TCP does when a host is gone.
  template <typename Function, typename Result = std::invoke_result_t<
                                   Function, c10d::Store&, const std::string&>>
  absl::StatusOr<Result> Try(std::string_view key, absl::Time deadline,
                             Function function) const {
    std::promise<absl::StatusOr<Result>> promise;
    std::future<absl::StatusOr<Result>> result = promise.get_future();
    const std::string title = absl::StrCat("torch's store, key ", key, ": ");
    std::thread([promise = std::move(promise), function = std::move(function),
                 store = store_, name = absl::StrCat(prefix_, key),
                 title]() mutable {
      try {
        promise.set_value(function(*store, name));
      } catch (const std::exception& error) {
        promise.set_value(
            absl::DeadlineExceededError(absl::StrCat(title, error.what())));
      }
    }).detach();
    constexpr absl::Duration kGrace = absl::Milliseconds(200);
    constexpr absl::Duration kLongest = absl::Hours(24 * 365);
    const absl::Duration left =
        std::clamp(deadline - absl::Now(), absl::ZeroDuration(), kLongest) +
        kGrace;
    if (result.wait_for(absl::ToChronoMilliseconds(left)) !=
        std::future_status::ready) {
      return absl::DeadlineExceededError(absl::StrCat(title, "no answer"));
    }
    return result.get();
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  const int rank_;
  const int size_;
};

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_TORCH_STORE_H_
