// StoreClient: the Store of a rank that reaches rank 0's table over a
// connection. One thread of its own moves the bytes; callers wait for answers.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_STORE_CLIENT_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_STORE_CLIENT_H_

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/one_shot.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/connection.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/wake_fd.h"

namespace tessera::collectives::bootstrap {

class StoreClient final : public Store {
 public:
  // Greets the server at the other end as `rank` of `size` and waits to be
  // welcome. Errors: the server's own where it refuses this rank, Unavailable
  // where the connection broke, DeadlineExceeded, ByteChannel's.
  static absl::StatusOr<std::unique_ptr<StoreClient>> Join(
      std::unique_ptr<ByteChannel> channel, Rank rank, int64_t size,
      const Deadline& deadline);

  // Takes leave and ends the thread.
  ~StoreClient() override;

  Rank rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  absl::Status SetFor(int64_t reads, std::string_view key,
                      std::string_view value, absl::Time deadline) override;
  absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                      absl::Time deadline) override;
  absl::Status Erase(std::string_view prefix, std::span<const Rank> ranks,
                     absl::Time deadline) override;
  absl::StatusOr<Absence> AwaitAll(std::string_view prefix,
                                   std::span<const Rank> ranks,
                                   absl::Time deadline) override;

 private:
  using Answer = OneShot<absl::StatusOr<std::string>>;

  StoreClient(Connection connection, WakeFd wake, Rank rank, int64_t size,
              std::string server);

  // Sends a request and waits for its answer, one that the server gives soon.
  absl::StatusOr<std::string> Ask(Message request, absl::Time deadline);
  // The same for one that may wait; at the deadline the server is asked to
  // answer with what there is.
  absl::StatusOr<std::string> AskUntil(Message request, absl::Time deadline);
  absl::StatusOr<std::shared_ptr<Answer>> Send(Message& request);
  absl::StatusOr<std::string> Finish(uint64_t id, Answer& answer,
                                     absl::Time deadline);
  absl::Status CheckProcess() const;

  // The thread.
  void Run();
  void Step(const Deadline& until);
  void TakeOutbox();
  void Deliver(Message message);
  void Break(const absl::Status& status);
  void SayFarewell();

  const Rank rank_;
  const int64_t size_;
  const std::string server_;  // "rank 0 (host a, pid 12)".
  const pid_t pid_ = getpid();
  const WakeFd wake_;
  std::atomic<bool> stopping_ = false;
  Connection connection_;  // The thread's.
  bool over_ = false;      // The thread's: the connection is.

  absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<Message> outbox_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Answer>> waiting_
      ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_CLIENT_H_
