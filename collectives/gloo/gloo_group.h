// GlooGroup, a Gloo context with deadlines, and
// StoreAdapter, which passes a job's Store to Gloo's rendezvous.
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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/blocking_transport.h"
#include "collectives/gloo/gloo_engine.h"

namespace tessera::collectives {

// The exception that StoreAdapter throws through Gloo.
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

// A job's Store as a store of Gloo. Gloo's keys end with the group rank that
// sets them; `members` maps group ranks to job ranks. Errors are thrown as
// StoreError.
class StoreAdapter : public gloo::rendezvous::Store {
 public:
  StoreAdapter(collectives::Store& store, std::string prefix,
               std::vector<Rank> members, absl::Time deadline)
      : store_(store),
        prefix_(std::move(prefix)),
        members_(std::move(members)),
        deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  // Waits until the key is set.
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&,
            const std::chrono::milliseconds&) override {}

  // Erases the keys of this rank, which are no longer needed.
  absl::Status Erase();

 private:
  collectives::Store& store_;
  const std::string prefix_;
  const std::vector<Rank> members_;
  const absl::Time deadline_;
  std::vector<std::string> set_keys_;
};

// Creates the device for the options. InvalidArgument if the interface or host
// name does not exist.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateGlooDevice(
    const GlooOptions& options);

// One rank's Gloo context. Thread-safe.
class GlooGroup : public BlockingGroup {
 public:
  // Connects `members` (ranks of the job including this one) through the store,
  // until `deadline`. `id` is unique in the job.
  static absl::StatusOr<std::shared_ptr<GlooGroup>> Connect(
      Store& store, std::vector<Rank> members, const std::string& id,
      std::shared_ptr<gloo::transport::Device> device,
      const GlooOptions& options, int64_t deadline);

  // Like Engine::CreateSubgroup.
  absl::StatusOr<std::shared_ptr<GlooGroup>> Subgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline);

  std::unique_ptr<Message> Send(Rank to, uint64_t slot, const void* data,
                                size_t bytes) override;
  std::unique_ptr<Message> Receive(Rank from, uint64_t slot, void* data,
                                   size_t bytes) override;

  // Null if the group has one rank.
  const std::shared_ptr<gloo::Context>& context() const { return context_; }
  const GlooOptions& options() const { return options_; }

  // The number of the next collective, for Gloo's tags.
  uint32_t NextTag() { return next_tag_++; }

 private:
  GlooGroup(Store& store, std::vector<Rank> members, const std::string& id,
            std::shared_ptr<gloo::transport::Device> device,
            const GlooOptions& options)
      : BlockingGroup(store, std::move(members), id),
        device_(std::move(device)),
        options_(options) {}

  absl::Status ConnectAll(int64_t deadline);

  const std::shared_ptr<gloo::transport::Device> device_;
  const GlooOptions options_;
  std::shared_ptr<gloo::Context> context_;
  std::atomic<uint32_t> next_tag_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_GLOO_GROUP_H_
