// StoreServer, which serves a job's store to the ranks, and ServedStore, rank
// 0's Store, which owns the server.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_STORE_SERVER_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_STORE_SERVER_H_

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "base/steady_now.h"
#include "collectives/bootstrap/store.h"
#include "collectives/bootstrap/store_table.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/connection.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/message.h"

namespace tessera::collectives {

// Reports rejected connections at a bounded rate.
//
//   RefusalLog log([](std::string line) { LOG(WARNING) << line; });
//   log.Report("127.0.0.1:40022", "it has another secret");
class RefusalLog {
 public:
  // `on_refusal` may be empty. Reports up to ten lines at once, then one per
  // second.
  explicit RefusalLog(std::function<void(std::string)> on_refusal)
      : on_refusal_(std::move(on_refusal)) {}

  // Called by one thread.
  void Report(std::string_view who, std::string_view why) {
    count_.fetch_add(1, std::memory_order_relaxed);
    if (!on_refusal_) return;
    const absl::Duration now = SteadyNow();
    lines_ = std::min(kBurst,
                      lines_ + absl::ToDoubleSeconds(now - last_) * kPerSecond);
    last_ = now;
    if (lines_ < 1) {
      ++unsaid_;
      return;
    }
    lines_ -= 1;
    std::string line =
        absl::StrCat("refused a connection to the job's store: ", who, ": ",
                     why.substr(0, kMaxWhy));
    if (unsaid_ > 0) absl::StrAppend(&line, " (and ", unsaid_, " more before)");
    unsaid_ = 0;
    on_refusal_(std::move(line));
  }

  // All rejections, reported or not. Thread-safe.
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr double kBurst = 10;
  static constexpr double kPerSecond = 1;
  static constexpr size_t kMaxWhy = 300;

  const std::function<void(std::string)> on_refusal_;
  std::atomic<int64_t> count_ = 0;
  double lines_ = kBurst;
  absl::Duration last_ = SteadyNow();
  int64_t unsaid_ = 0;
};

// Answers that other threads send to connections.
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

// One connection of the server: its rank, its waits, and the answers from the
// table.
class ServerPeer {
 public:
  enum class State { kGreeting, kMember, kLeaving, kOver };

  // `number` is unique in the server. `expected` is the rank that must connect;
  // nullopt: any.
  ServerPeer(uint64_t number, std::string name, Connection connection,
             std::optional<Rank> expected, Deadline greet_by,
             std::shared_ptr<StoreTable> table,
             std::shared_ptr<AnswerQueue> answers);
  ServerPeer(ServerPeer&&) = default;

  // Sends, receives and handles messages; check state() afterwards. An error
  // means that the peer was rejected before it joined.
  absl::Status Advance();

  // Sends an answer.
  void Answer(const Message& answer);

  // Notifies the peer that the server leaves.
  void SayBye();

  // Closes the connection. A rank that has not left is lost.
  void Close();

  uint64_t number() const { return number_; }
  State state() const { return state_; }
  const std::string& name() const { return name_; }
  bool adopted() const { return expected_.has_value(); }
  const Deadline& greet_by() const { return greet_by_; }
  // After this time the connection may be closed if others wait to be accepted.
  const Deadline& patience() const { return patience_; }
  Connection& connection() { return connection_; }

 private:
  absl::Status Handle(const Message& message);
  absl::Status HandleHello(const Message& hello);
  absl::Status TakeMember(const Message& hello);
  absl::Status HandleRequest(const Message& request);
  void Get(const Message& request);
  absl::Status Await(const Message& request);
  void Cancel(uint64_t id);
  void Reply(uint64_t id, const absl::Status& status, std::string value = "");
  void CancelAll();

  // A wait in the table, with the arguments of kAbsent.
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

struct ServerOptions {
  absl::Duration greeting_timeout = absl::Seconds(10);
  int max_greeting = 64;
  // How long the destructor waits for values that ranks have not read yet.
  absl::Duration linger = absl::Seconds(3);
  // Receives one line per rejected connection; called by the server's thread.
  std::function<void(std::string)> on_refusal;
};

// Creates a channel over an accepted socket, or rejects it.
using ChannelMaker =
    std::function<absl::StatusOr<std::unique_ptr<ByteChannel>>(UniqueFd)>;

// Serves a StoreTable to ranks in other processes, on its own thread, which
// never blocks on a single rank.
//
// A connection has `greeting_timeout` to authenticate (the channel's handshake)
// and to send its rank. At most `max_greeting` connections may do so at a time;
// others wait in the kernel's queue, and the oldest one may be dropped after a
// second. Connections that fail are closed and reported. A rank that closes its
// connection has left; a rank whose connection breaks is lost. Both end the
// waits for it.
class StoreServer {
 public:
  // Serves connections to `listener`, over channels from `make_channel`.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Listen(
      std::shared_ptr<StoreTable> table, ServerOptions options,
      UniqueFd listener, ChannelMaker make_channel);

  // Serves ranks 1, 2, ... over these channels, which may greet at any time.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Adopt(
      std::shared_ptr<StoreTable> table, ServerOptions options,
      std::vector<std::unique_ptr<ByteChannel>> channels);

  // Lingers, notifies all ranks that the server leaves, and stops the thread.
  ~StoreServer();

  // The number of rejected connections.
  int64_t refusals() const;

 private:
  class Loop;
  explicit StoreServer(std::shared_ptr<Loop> loop);

  const std::shared_ptr<Loop> loop_;
  const pid_t pid_ = getpid();
  std::thread thread_;
};

// Rank 0's Store, which owns the table and its server. The destructor waits up
// to ServerOptions::linger until all values with limited reads have been read,
// so that the other ranks can finish their last all-gather. Later calls on
// their stores fail.
class ServedStore final : public Store {
 public:
  ServedStore(std::unique_ptr<TableStore> member,
              std::unique_ptr<StoreServer> server, int port)
      : server_(std::move(server)), member_(std::move(member)), port_(port) {}

  Rank rank() const override { return member_->rank(); }
  int64_t size() const override { return member_->size(); }
  absl::Status SetFor(int64_t reads, std::string_view key,
                      std::string_view value, absl::Time deadline) override {
    return member_->SetFor(reads, key, value, deadline);
  }
  absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                      absl::Time deadline) override {
    return member_->GetFrom(owner, key, deadline);
  }
  absl::Status Erase(std::string_view prefix, std::span<const Rank> ranks,
                     absl::Time deadline) override {
    return member_->Erase(prefix, ranks, deadline);
  }
  absl::StatusOr<MissingMembers> AwaitAll(std::string_view prefix,
                                          std::span<const Rank> ranks,
                                          absl::Time deadline) override {
    return member_->AwaitAll(prefix, ranks, deadline);
  }

  // The TCP port that the server listens on; 0 if none.
  int port() const { return port_; }
  // The number of rejected connections.
  int64_t refusals() const { return server_->refusals(); }

 private:
  // Rank 0 leaves first, then the server stops.
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<TableStore> member_;
  int port_;
};

// Creates a table for `size` ranks, joins it as rank 0, and serves it with the
// server that `start` creates.
absl::StatusOr<std::unique_ptr<ServedStore>> ServeTable(
    int64_t size, int port,
    const std::function<absl::StatusOr<std::unique_ptr<StoreServer>>(
        std::shared_ptr<StoreTable>)>& start);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_SERVER_H_
