// StoreAdapter: a job's Store as Gloo's rendezvous wants it.
#ifndef TESSERA_COLLECTIVES_GLOO_STORE_ADAPTER_H_
#define TESSERA_COLLECTIVES_GLOO_STORE_ADAPTER_H_

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"

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

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_STORE_ADAPTER_H_
