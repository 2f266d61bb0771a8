// Signature: what the ranks of a group must agree about before bytes move.
//
// It travels with every message and flag, so that ranks whose calls differ
// (another operation, count, type, root, order, algorithm) find out from each
// other at once, and both can say what the other one called.
#ifndef TESSERA_COLLECTIVES_OPERATION_SIGNATURE_H_
#define TESSERA_COLLECTIVES_OPERATION_SIGNATURE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// Plain bytes: copied into message headers and shared memory as it is.
struct Signature {
  uint64_t sequence = 0;  // Number of the call on its group, from 1; of a
                          // message on its channel for point-to-point.
  int64_t count = 0;      // MessageCount; 0 where ranks may differ.
  uint32_t group = 0;     // Tells one group's traffic from another's.
  uint32_t details = 0;  // Hash of uneven counts, a scaled sum's factor, label.
  int32_t root = -1;     // -1 where there is none.
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kEngine;

  friend bool operator==(const Signature&, const Signature&) = default;
};
static_assert(sizeof(Signature) == 32);

// The signature of `operation` as call number `sequence` of a group.
// send, receive and send_receive: both sides give the same one.
Signature SignatureOf(const Operation& operation, int64_t world, uint32_t group,
                      uint64_t sequence, Algorithm algorithm);

// 32 bits of everything but the sequence number; never 0.
uint32_t Fingerprint(const Signature& signature);

// "all_reduce #17 of 1024 f32, sum, ring".
std::string DescribeSignature(const Signature& signature);

// The error for two ranks whose signatures differ: FailedPrecondition that
// names both ranks, both calls and the first thing in which they differ; the
// same on both.
absl::Status MismatchError(const Signature& mine, Rank my_rank,
                           const Signature& theirs, Rank their_rank);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPERATION_SIGNATURE_H_
