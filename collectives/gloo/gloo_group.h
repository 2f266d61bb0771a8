// StoreAdapter: a job's Store as Gloo's rendezvous wants it.
#ifndef TESSERA_COLLECTIVES_GLOO_GLOO_GROUP_H_
#define TESSERA_COLLECTIVES_GLOO_GLOO_GROUP_H_

#include <gloo/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_table.h"
#include "collectives/gloo/gloo_engine.h"

namespace tessera::collectives {

// What the adapter throws through Gloo.
class StoreError : public std::exception {
 public:
  explicit StoreError(absl::Status status)
      : status_(std::move(status)), text_(status_.ToString()) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  absl::Status status_;
  std::string text_;
};

// Gloo's keys end with the rank that sets them, in the group; `members` are
// those ranks in the job. Errors are thrown as StoreError.
class StoreAdapter : public gloo::rendezvous::Store {
 public:
  StoreAdapter(collectives::Store& store, std::string prefix,
               std::vector<Rank> members, absl::Time deadline)
      : store_(store),
        prefix_(std::move(prefix)),
        members_(std::move(members)),
        deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  // Waits for the key.
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&,
            const std::chrono::milliseconds&) override {}

  // Removes what this rank has set; nobody reads it any more.
  absl::Status Erase();

 private:
  collectives::Store& store_;
  const std::string prefix_;
  const std::vector<Rank> members_;
  const absl::Time deadline_;
  std::vector<std::string> set_keys_;
};

// GlooGroup: one rank's seat in a Gloo context, and what its exceptions mean.

// A device by the options. InvalidArgument where there is no such interface or
// host name.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateGlooDevice(
    const GlooOptions& options);

// What is left until `deadline` (MonotonicNanos) as Gloo wants it: at least
// 1 ms, at most some weeks.
std::chrono::milliseconds TimeUntil(int64_t deadline);

// Thread-safe.
class GlooGroup {
 public:
  // Meets the others of `members`, ranks of the job, this one among them, at
  // the store, until `deadline`. `id` tells the group from all others of the
  // job.
  static absl::StatusOr<std::shared_ptr<GlooGroup>> Connect(
      Store& store, std::vector<Rank> members, const std::string& id,
      std::shared_ptr<gloo::transport::Device> device,
      const GlooOptions& options, int64_t deadline);

  // As Engine::CreateSubgroup.
  absl::StatusOr<std::shared_ptr<GlooGroup>> Subgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline);

  Rank rank() const { return rank_; }
  int64_t size() const { return static_cast<int64_t>(members_.size()); }
  // Null in a group of one.
  const std::shared_ptr<gloo::Context>& context() const { return context_; }
  const PeerTable& peers() const { return peers_; }
  const GlooOptions& options() const { return options_; }
  const Failure& failure() const { return failure_; }

  // The number of the next collective, for Gloo's slots.
  uint32_t NextTag() { return next_tag_++; }

  // What an exception of Gloo's means: the reason of an abort, the deadline, or
  // a connection that was lost; of `peer`, where that is known.
  absl::Status Explain(const std::exception& error,
                       const OperationContext* context,
                       std::optional<Rank> peer = std::nullopt) const;

  // Closes all connections, which ends every wait on them, here and at the
  // other ends. When it returns Gloo touches no buffer of this group any more.
  void Abort(const absl::Status& reason);

 private:
  GlooGroup(Store& store, std::vector<Rank> members, std::string id,
            std::shared_ptr<gloo::transport::Device> device,
            const GlooOptions& options);

  absl::Status Meet(int64_t deadline);
  absl::Status ConnectAll(int64_t deadline);

  Store& store_;
  const std::vector<Rank> members_;  // Ranks of the job.
  const std::string id_;
  const std::shared_ptr<gloo::transport::Device> device_;
  const GlooOptions options_;
  Rank rank_;
  std::shared_ptr<gloo::Context> context_;
  PeerTable peers_;
  Failure failure_;
  std::atomic<uint32_t> next_tag_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_GLOO_GROUP_H_
