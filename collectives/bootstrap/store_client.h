// StoreClient: the Store of a rank that is connected to rank 0's table. Its own
// thread sends and receives; callers wait for answers.
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
#include "collectives/bootstrap/store.h"
#include "collectives/bootstrap/store_table.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/connection.h"
#include "collectives/channel/deadline.h"

namespace tessera::collectives {

class StoreClient final : public Store {
 public:
  // Joins the server at the other end of `channel` as `rank` of `size`. Errors:
  // the server's if it rejects this rank, Unavailable if the connection broke,
  // DeadlineExceeded, and errors of ByteChannel.
  static absl::StatusOr<std::unique_ptr<StoreClient>> Join(
      std::unique_ptr<ByteChannel> channel, Rank rank, int64_t size,
      const Deadline& deadline);

  // Leaves the job and stops the thread.
  ~StoreClient() override;

  Rank rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  absl::Status SetFor(int64_t reads, std::string_view key,
                      std::string_view value, absl::Time deadline) override;
  absl::StatusOr<std::string> GetFrom(Rank owner, std::string_view key,
                                      absl::Time deadline) override;
  absl::Status Erase(std::string_view prefix, std::span<const Rank> ranks,
                     absl::Time deadline) override;
  absl::StatusOr<MissingMembers> AwaitAll(std::string_view prefix,
                                          std::span<const Rank> ranks,
                                          absl::Time deadline) override;

 private:
  using Answer = OneShot<absl::StatusOr<std::string>>;

  StoreClient(Connection connection, WakeFd wake, Rank rank, int64_t size,
              std::string server);

  // Sends a request that the server answers immediately; waits for the answer.
  absl::StatusOr<std::string> Ask(Message request, absl::Time deadline);
  // Sends a request that may wait. At the deadline it asks the server for the
  // current result.
  absl::StatusOr<std::string> AskUntil(Message request, absl::Time deadline);
  absl::StatusOr<std::shared_ptr<Answer>> Send(Message& request);
  absl::StatusOr<std::string> Finish(uint64_t id, Answer& answer,
                                     absl::Time deadline);

  // Run by the thread.
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
  Connection connection_;  // Used only by the thread.
  bool over_ = false;      // Used only by the thread: the connection ended.

  absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<Message> outbox_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Answer>> waiting_
      ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // Last member: uses all of the above.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_CLIENT_H_
