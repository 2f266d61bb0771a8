// Transport: point-to-point messages between the ranks of a group. What
// algorithms are written against, and all that an engine must have.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Request in, transport.StartReceive(left, Lane::kCollective, s, block));
//   TESSERA_ASSIGN_OR_RETURN(
//       Request out, transport.StartSend(right, Lane::kCollective, s, bytes));
//   TESSERA_RETURN_IF_ERROR(transport.Wait({{in, out}}, context));
//
// A channel is an ordered pair of ranks and a lane. Its messages arrive in the
// order in which they were started, and a receive takes the next one: its size
// and its signature must be those that the receiver expects. A send may
// complete only when it is received (rendezvous), or before: nothing may depend
// on either. A rank may send to itself.
//
// Threads: requests of one channel end are started by one thread at a time;
// different channels and directions are independent and may be used, and waited
// on, by different threads at once.
#ifndef TESSERA_COLLECTIVES_ENGINE_TRANSPORT_H_
#define TESSERA_COLLECTIVES_ENGINE_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/operation_context.h"
#include "collectives/operation/signature.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Collectives and point-to-point calls do not see each other's messages.
enum class Lane : uint8_t { kCollective = 0, kPointToPoint = 1 };
inline constexpr int kLaneCount = 2;

enum class Direction : uint8_t { kSend = 0, kReceive = 1 };

// One started message. A small value; nothing to free.
struct Request {
  uint64_t number = 0;  // On its channel end, from 1.
  Rank peer;
  Lane lane = Lane::kCollective;
  Direction direction = Direction::kSend;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual int64_t size() const = 0;

  // Starts a message. Returns without waiting; `bytes` stay the caller's and
  // must live until the request is complete. Any size from 0.
  virtual absl::StatusOr<Request> StartSend(
      Rank to, Lane lane, const Signature& signature,
      std::span<const std::byte> bytes) = 0;
  virtual absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                               const Signature& expected,
                                               std::span<std::byte> bytes) = 0;

  // True when the request is complete. Moves bytes where it can, never waits.
  // An error: the group is broken and the request will not complete.
  virtual absl::StatusOr<bool> Test(const Request& request) = 0;

  // Returns when all requests are complete. DeadlineExceeded at the context's
  // deadline, naming the peers that are missing; Unavailable where a peer is
  // dead; FailedPrecondition on a mismatch; Aborted after Abort.
  virtual absl::Status Wait(std::span<const Request> requests,
                            OperationContext& context) = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_TRANSPORT_H_
