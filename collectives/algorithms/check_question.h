// What cost.cc and bytes_on_wire.cc refuse alike.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_CHECK_QUESTION_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_CHECK_QUESTION_H_

#include "absl/status/status.h"
#include "collectives/algorithms/cost.h"

namespace tessera::collectives {

absl::Status CheckQuestion(const CostQuestion& question);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_CHECK_QUESTION_H_
