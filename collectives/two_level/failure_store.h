// FailureStore: passes the reason for which a group failed to ranks on other
// hosts, which see only that connections end.
#ifndef TESSERA_COLLECTIVES_TWO_LEVEL_FAILURE_STORE_H_
#define TESSERA_COLLECTIVES_TWO_LEVEL_FAILURE_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/transport.h"

namespace tessera::collectives {

// The first reasons of one group in the job's store. Causes (a process of a
// host that ended, mismatched calls, an abort) come before errors of the
// network, which often are their consequences. Thread-safe.
class FailureStore {
 public:
  // `store` must outlive this. `id` is unique in the job; `members` are the
  // ranks of the job that form the group.
  FailureStore(Store& store, std::string id, std::vector<Rank> members)
      : store_(store), id_(std::move(id)), members_(std::move(members)) {}

  // The rank that serves the store stays until the others have read the reason,
  // at most until a second after the first error.
  ~FailureStore();

  // The reasons of a subgroup.
  std::shared_ptr<FailureStore> Subgroup(std::span<const Rank> members,
                                         uint32_t group) const;

  // Called by the rank that ends the group, before it closes its connections.
  void Abort(const absl::Status& reason);

  // Returns the cause of an error of the network, as far as another rank
  // reports one within a fraction of a second, or the error itself.
  absl::Status Explain(const absl::Status& error);
  bool explained() const { return explained_.load(); }

 private:
  std::string KeyOf(std::string_view kind) const;
  void Report(std::string_view kind, const absl::Status& reason);
  // OK if there is none.
  absl::Status Find(std::string_view kind, absl::Duration patience);

  Store& store_;
  const std::string id_;
  const std::vector<Rank> members_;
  std::atomic<bool> explained_ = false;
  std::atomic<int64_t> failed_at_ = 0;  // MonotonicNanos; 0: not failed.
};

// Messages whose errors are explained.
class ExplainedTransport : public Transport {
 public:
  // Explains the errors for which `may_follow` returns true, that is, that may
  // follow from an error of another host. `failures` may be null. The arguments
  // must outlive this.
  ExplainedTransport(Transport& inner, FailureStore* failures,
                     std::function<bool(const absl::Status&)> may_follow)
      : inner_(inner),
        failures_(failures),
        may_follow_(std::move(may_follow)) {}

  Rank rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  bool ProgressesAlone() const override { return inner_.ProgressesAlone(); }

  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override {
    return Explained(inner_.StartSend(to, lane, signature, bytes));
  }
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override {
    return Explained(inner_.StartReceive(from, lane, expected, bytes));
  }
  absl::StatusOr<bool> Test(const Request& request) override {
    return Explained(inner_.Test(request));
  }
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override {
    return Explained(inner_.Wait(requests, context));
  }
  bool CanPeek() const override { return inner_.CanPeek(); }
  // One thread at a time.
  absl::StatusOr<std::optional<Signature>> Peek(Rank from, Lane lane) override {
    const auto lost = lost_.find(from);
    if (lost != lost_.end()) return lost->second;
    auto found = Explained(inner_.Peek(from, lane));
    if (!found.ok()) lost_[from] = found.status();
    return found;
  }
  absl::Status WaitUntil(OperationContext& context,
                         absl::FunctionRef<bool()> ready,
                         absl::FunctionRef<void(std::vector<int64_t>&)> missing,
                         const Request* only) override {
    return Explained(inner_.WaitUntil(context, ready, missing, only));
  }

 private:
  absl::Status Explained(const absl::Status& status) const {
    const bool explains =
        !status.ok() && failures_ != nullptr && may_follow_(status);
    return explains ? failures_->Explain(status) : status;
  }
  template <typename T>
  absl::StatusOr<T> Explained(absl::StatusOr<T> result) const {
    if (result.ok()) return result;
    return Explained(result.status());
  }

  Transport& inner_;
  FailureStore* const failures_;
  const std::function<bool(const absl::Status&)> may_follow_;
  std::map<Rank, absl::Status> lost_;  // Errors of Peek.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TWO_LEVEL_FAILURE_STORE_H_
