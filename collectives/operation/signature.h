// Signature: identifies a call, so that ranks can check that they make the same
// call.
//
// Every message and flag includes the signature or its fingerprint. Ranks whose
// calls differ in operation, count, type, root, order or algorithm detect it at
// once, and both report the other's call.
#ifndef TESSERA_COLLECTIVES_OPERATION_SIGNATURE_H_
#define TESSERA_COLLECTIVES_OPERATION_SIGNATURE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// Trivially copyable; stored in message headers and shared memory.
struct Signature {
  uint64_t sequence = 0;  // Number of the call in its group, from 1; for
                          // messages their number in the channel; 0: unknown.
  int64_t count = 0;      // MessageCount; 0 if ranks may differ.
  uint32_t group = 0;     // Id of the group.
  uint32_t details = 0;  // Hash of uneven counts, a scaled sum's factor, label.
  int32_t root = -1;     // -1 if there is none; the tag of messages.
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kEngine;

  friend bool operator==(const Signature&, const Signature&) = default;
};
static_assert(sizeof(Signature) == 32);

// The signature of `operation` as call number `sequence` of a group. For
// point-to-point operations both sides have the same signature.
Signature SignatureOf(const Operation& operation, int64_t world, uint32_t group,
                      uint64_t sequence, Algorithm algorithm);

// A 32-bit hash of everything except the sequence number; never 0.
uint32_t Fingerprint(const Signature& signature);

// "all_reduce #17 of 1024 f32, sum, ring".
std::string DescribeSignature(const Signature& signature);

// The error for two ranks with different signatures: FailedPrecondition that
// names both ranks, both calls and the first difference; identical on both
// ranks.
absl::Status MismatchError(const Signature& mine, Rank my_rank,
                           const Signature& theirs, Rank their_rank);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPERATION_SIGNATURE_H_
