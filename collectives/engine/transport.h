// Transport: point-to-point messages between the ranks of a group. The
// collective algorithms run on it; an engine needs nothing else.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Request in, transport.StartReceive(left, Lane::kCollective, s, block));
//   TESSERA_ASSIGN_OR_RETURN(
//       Request out, transport.StartSend(right, Lane::kCollective, s, bytes));
//   TESSERA_RETURN_IF_ERROR(transport.Wait({{in, out}}, context));
//
// A channel is an ordered pair of ranks and a lane. Messages of a channel
// arrive in the order in which they were started. A receive matches the next
// message, whose size and signature must be the expected ones. A send may
// complete before it is received (eager) or only then (rendezvous); callers
// must not depend on either. A rank may send to itself.
//
// Threads: one thread at a time starts requests on one end of a channel;
// different channels and directions are independent and may be used
// concurrently.
#ifndef TESSERA_COLLECTIVES_ENGINE_TRANSPORT_H_
#define TESSERA_COLLECTIVES_ENGINE_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/operation_context.h"
#include "collectives/operation/signature.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Separates the messages of collectives from point-to-point messages without
// and with tags. Only transports that can peek have kTagged.
enum class Lane : uint8_t { kCollective = 0, kPointToPoint = 1, kTagged = 2 };
inline constexpr int kLaneCount = 2;
inline constexpr int kLaneCountWithTags = 3;

enum class Direction : uint8_t { kSend = 0, kReceive = 1 };

// A started message. Cheap to copy; owns nothing.
struct Request {
  uint64_t number = 0;  // Number on its channel end, from 1.
  Rank peer;
  Lane lane = Lane::kCollective;
  Direction direction = Direction::kSend;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual int64_t size() const = 0;

  // Starts a message of any size from 0. Does not wait; `bytes` must stay valid
  // until the request is complete.
  virtual absl::StatusOr<Request> StartSend(
      Rank to, Lane lane, const Signature& signature,
      std::span<const std::byte> bytes) = 0;
  virtual absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                               const Signature& expected,
                                               std::span<std::byte> bytes) = 0;

  // Returns true if the request is complete. Makes progress but never waits. On
  // error the group is broken and the request will not complete.
  virtual absl::StatusOr<bool> Test(const Request& request) = 0;

  // Waits until all requests are complete. DeadlineExceeded at the context's
  // deadline, naming the missing peers; Unavailable if a peer is dead;
  // FailedPrecondition on a mismatch; after Abort its reason.
  virtual absl::Status Wait(std::span<const Request> requests,
                            OperationContext& context) = 0;

  // True if started messages progress while no thread calls the transport.
  virtual bool ProgressesAlone() const { return false; }

  // Messages with tags need Peek and WaitUntil.
  virtual bool CanPeek() const { return false; }

  // The signature of the next message of a channel without a started receive,
  // if its beginning has arrived. Never waits. An error says that the rank can
  // send no more; it may have left.
  virtual absl::StatusOr<std::optional<Signature>> Peek(Rank /*from*/,
                                                        Lane /*lane*/) {
    return absl::UnimplementedError("this transport cannot peek");
  }

  // Waits until `ready` returns true; calls it on this thread whenever a
  // message may have moved. Errors as for Wait; `missing` lists the awaited
  // ranks. Any number of threads may wait. If `only` is not null, just the
  // messages of that channel end are awaited (its number is not used), which
  // saves a transport over a library the wake-up of another thread.
  virtual absl::Status WaitUntil(
      OperationContext& /*context*/, absl::FunctionRef<bool()> /*ready*/,
      absl::FunctionRef<void(std::vector<int64_t>&)> /*missing*/,
      const Request* /*only*/ = nullptr) {
    return absl::UnimplementedError("this transport cannot peek");
  }
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_TRANSPORT_H_
