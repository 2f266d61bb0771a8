// ServerPeer: one connection of the store's server: who it is and what it waits
// for. Answers its messages from the table.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_SERVER_PEER_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_SERVER_PEER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "collectives/bootstrap/store_table.h"
#include "collectives/channel/connection.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/message.h"
#include "collectives/channel/wake_fd.h"

namespace tessera::collectives::bootstrap {

// Answers that other threads have for connections.
class AnswerQueue {
 public:
  using Answers = std::vector<std::pair<uint64_t, Message>>;  // By peer number.

  explicit AnswerQueue(WakeFd wake) : wake_(std::move(wake)) {}
  const WakeFd& wake() const { return wake_; }

  void Put(uint64_t peer, Message answer) {
    {
      absl::MutexLock lock(&mutex_);
      answers_.emplace_back(peer, std::move(answer));
    }
    wake_.Wake();
  }
  Answers TakeAll() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(answers_, {});
  }

 private:
  const WakeFd wake_;
  absl::Mutex mutex_;
  Answers answers_ ABSL_GUARDED_BY(mutex_);
};

class ServerPeer {
 public:
  enum class State { kGreeting, kMember, kLeaving, kOver };

  // `number` tells it from all others of the server. `expected` is the rank
  // that it must be; nothing where any will do.
  ServerPeer(uint64_t number, std::string name, Connection connection,
             std::optional<Rank> expected, Deadline greet_by,
             std::shared_ptr<StoreTable> table,
             std::shared_ptr<AnswerQueue> answers);
  ServerPeer(ServerPeer&&) = default;

  // Moves bytes and handles the messages that came. An error: the peer was
  // refused (it never was a member) for this reason. Afterwards look at
  // state().
  absl::Status Advance();

  // An answer that was found for it.
  void Answer(const Message& answer);

  // Tells it that the server leaves.
  void SayBye();

  // Closes the connection; a member's seat is lost, unless it left.
  void Close();

  uint64_t number() const { return number_; }
  State state() const { return state_; }
  const std::string& name() const { return name_; }
  bool adopted() const { return expected_.has_value(); }
  const Deadline& greet_by() const { return greet_by_; }
  // After that it gives way where others wait to greet.
  const Deadline& patience() const { return patience_; }
  Connection& connection() { return connection_; }

 private:
  absl::Status Handle(const Message& message);
  absl::Status HandleHello(const Message& hello);
  absl::Status TakeSeat(const Message& hello);
  absl::Status HandleRequest(const Message& request);
  void Get(const Message& request);
  absl::Status Await(const Message& request);
  void Cancel(uint64_t id);
  void Reply(uint64_t id, const absl::Status& status, std::string value = "");
  void CancelAll();

  // A wait in the table, and for kAbsent what it asks.
  struct Wait {
    StoreTable::Ticket ticket = 0;
    bool absent = false;
    std::string prefix;
    std::vector<Rank> ranks;
  };

  uint64_t number_;
  std::string name_;
  Connection connection_;
  std::optional<Rank> expected_;
  Deadline greet_by_;
  Deadline patience_ = Deadline::After(absl::Seconds(1));
  std::shared_ptr<StoreTable> table_;
  std::shared_ptr<AnswerQueue> answers_;
  State state_ = State::kGreeting;
  Rank rank_;
  absl::flat_hash_map<uint64_t, Wait> waits_;
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_SERVER_PEER_H_
