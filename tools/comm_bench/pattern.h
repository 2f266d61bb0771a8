// Pattern: contents of buffers that every rank can compute for every other, so
// that each checks its results alone and exactly.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Pattern pattern, Pattern::Create(DType::kBF16, Reduction::Sum(), 4));
//   pattern.Fill(input, rank, /*first=*/0, iteration);
//   ... all-reduce ...
//   TESSERA_RETURN_IF_ERROR(pattern.CheckReduced(output, 0, iteration));
//
// A rank's input is an endless periodic sequence of small whole numbers, other
// for each rank and iteration, chosen so that every reduction of them has a
// result that the type represents exactly. Filling and checking run at the
// speed of memory.
#ifndef TESSERA_TOOLS_COMM_BENCH_PATTERN_H_
#define TESSERA_TOOLS_COMM_BENCH_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/reduction.h"
#include "topology/rank.h"

namespace tessera::tools {

class Pattern {
 public:
  // InvalidArgument where so many ranks leave no exact number but 0 (an average
  // of i8 over a hundred ranks).
  static absl::StatusOr<Pattern> Create(DType dtype,
                                        const collectives::Reduction& reduction,
                                        int64_t world);

  // Writes elements `first`, first + 1, ... of the rank's sequence.
  void Fill(collectives::Buffer target, topology::Rank rank, int64_t first,
            int64_t iteration) const;

  // OK where `result` holds these elements of the rank's sequence, or of the
  // reduction of all ranks' sequences. Internal, with the first element that
  // differs and both values. An average may differ by the last bit: engines
  // divide or multiply by 1/n.
  absl::Status CheckCopied(collectives::ConstBuffer result,
                           topology::Rank source, int64_t first,
                           int64_t iteration) const;
  absl::Status CheckReduced(collectives::ConstBuffer result, int64_t first,
                            int64_t iteration) const;

 private:
  Pattern(DType dtype, double tolerance)
      : dtype_(dtype), tolerance_(tolerance) {}

  absl::Status Check(const std::vector<std::byte>& table, int64_t phase,
                     collectives::ConstBuffer result) const;
  absl::Status CheckValue(const std::byte* expected, const std::byte* result,
                          int64_t index) const;

  DType dtype_;
  double tolerance_;  // Relative.
  // Two periods each, so that a period from any phase is contiguous.
  std::vector<std::byte> inputs_;
  std::vector<std::byte> reduced_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_PATTERN_H_
