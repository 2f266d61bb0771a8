// AlgorithmChooser: which algorithm carries out an operation.
//
// Every rank of a group must come to the same choice: an implementation looks
// only at what is equal on all of them.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CHOOSER_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CHOOSER_H_

#include <cstdint>
#include <string>

#include "base/dtype/dtype.h"
#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// An operation as all ranks of its group see it alike.
struct ChoiceQuestion {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  int64_t bytes = 0;  // Of the whole message (MessageCount); 0 for an uneven
                      // all_to_all, whose ranks differ.
  int64_t ranks = 1;
  int64_t ranks_per_host = 1;  // The largest number on one host.
  bool uneven = false;
  bool engine_implements = false;  // kEngine may be chosen.
  bool has_transport = true;       // Anything else may be chosen.

  friend bool operator==(const ChoiceQuestion&,
                         const ChoiceQuestion&) = default;
};

class AlgorithmChooser {
 public:
  virtual ~AlgorithmChooser() = default;

  // An algorithm that carries out the operation. Thread-safe.
  virtual Algorithm Choose(const ChoiceQuestion& question) const = 0;

  // Why, in a sentence or a small table.
  virtual std::string Explain(const ChoiceQuestion& question) const = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CHOOSER_H_
