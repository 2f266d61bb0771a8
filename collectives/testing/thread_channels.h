// ThreadWorld::Impl: the channels between the ranks of a ThreadWorld, all under
// one lock.
#ifndef TESSERA_COLLECTIVES_TESTING_THREAD_CHANNELS_H_
#define TESSERA_COLLECTIVES_TESTING_THREAD_CHANNELS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/testing/thread_transport.h"
#include "collectives/engine/transport.h"

namespace tessera::collectives {
namespace thread_transport_internal {

struct Outgoing {
  Signature signature;
  std::span<const std::byte> bytes;
  std::vector<std::byte> copy;  // Of an eager one.
  bool eager = false;
  bool lazy = false;
  int delay = 0;      // How often it is still passed over.
  double depart = 0;  // Modelled.
};

struct Incoming {
  Signature signature;
  std::span<std::byte> bytes;
  bool waited_for = false;
};

// From one rank to another on one lane. Matched messages are popped.
struct Channel {
  std::deque<Outgoing> sends;
  std::deque<Incoming> receives;
  uint64_t started_sends = 0;
  uint64_t started_receives = 0;
  uint64_t matched = 0;
  // Modelled, of the messages by number: when they set out, and when they have
  // left.
  std::vector<double> departures;
  std::vector<double> left;
};

// What tells a request apart on its rank, and the memory that it uses.
using Key = std::tuple<Direction, int64_t, Lane, uint64_t>;
struct Use {
  const std::byte* begin;
  const std::byte* end;
};

}  // namespace thread_transport_internal

class ThreadWorld::Impl {
 public:
  using Channel = thread_transport_internal::Channel;
  using Key = thread_transport_internal::Key;
  using Outgoing = thread_transport_internal::Outgoing;
  using Use = thread_transport_internal::Use;

  Impl(int64_t ranks, const ThreadWorldOptions& options);

  absl::StatusOr<Request> StartSend(int64_t me, Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes);
  absl::StatusOr<Request> StartReceive(int64_t me, Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes);
  absl::StatusOr<bool> Test(int64_t me, const Request& request);
  absl::Status Wait(int64_t me, std::span<const Request> requests,
                    OperationContext& context);
  void Abort(const absl::Status& reason);

  class Port : public Transport {
   public:
    Port(Impl* impl, int64_t rank) : impl_(impl), rank_(rank) {}
    Rank rank() const override { return Rank(rank_); }
    int64_t size() const override { return impl_->size; }
    absl::StatusOr<Request> StartSend(
        Rank to, Lane lane, const Signature& signature,
        std::span<const std::byte> bytes) override {
      return impl_->StartSend(rank_, to, lane, signature, bytes);
    }
    absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                         const Signature& expected,
                                         std::span<std::byte> bytes) override {
      return impl_->StartReceive(rank_, from, lane, expected, bytes);
    }
    absl::StatusOr<bool> Test(const Request& request) override {
      return impl_->Test(rank_, request);
    }
    absl::Status Wait(std::span<const Request> requests,
                      OperationContext& context) override {
      return impl_->Wait(rank_, requests, context);
    }

   private:
    Impl* impl_;
    int64_t rank_;
  };

  const int64_t size;
  std::vector<Port> ports;
  mutable std::mutex mutex;
  std::vector<std::map<Key, Use>> open;  // By rank: not seen complete.
  std::vector<Traffic> sent;
  std::vector<double> clock;
  std::vector<double> send_port;     // Free again, modelled.
  std::vector<double> receive_port;  //

 private:
  Channel& At(int64_t from, int64_t to, Lane lane) {
    return channels_[static_cast<size_t>((from * size + to) * kLaneCount +
                                         static_cast<int64_t>(lane))];
  }
  Channel& Of(int64_t me, const Request& request) {
    return request.direction == Direction::kSend
               ? At(me, request.peer.value(), request.lane)
               : At(request.peer.value(), me, request.lane);
  }
  void Model(Outgoing& message, int64_t me);
  void Shape(Outgoing& message);
  absl::Status CheckPeer(Rank peer) const;
  absl::Status CheckUse(int64_t me, Direction direction, const Use& use) const;
  // Matches what can be matched.
  void Progress(int64_t from, int64_t to, Lane lane);
  void Match(Channel& channel, int64_t from, int64_t to);
  bool IsComplete(int64_t me, const Request& request);
  void MarkWaited(int64_t me, const Request& request);
  void Close(int64_t me, const Request& request);
  void CloseAll(int64_t me, std::span<const Request> requests);
  bool PollAll(int64_t me, std::span<const Request> requests);
  absl::Status Missing(int64_t me, std::span<const Request> requests,
                       const OperationContext& context);
  void Fail(const absl::Status& reason);

  const ThreadWorldOptions options_;
  std::vector<Channel> channels_;
  std::vector<std::condition_variable> wakes_;
  std::mt19937_64 random_;
  absl::Status broken_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_THREAD_CHANNELS_H_
