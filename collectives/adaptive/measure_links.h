// The parameters of the cost formulas, measured.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_LINKS_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_LINKS_H_

#include "absl/status/statusor.h"
#include "collectives/adaptive/formula.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

// A collective; the same on every rank. Without point-to-point messages both
// lines are those of a copy by the processor. Takes some milliseconds.
absl::StatusOr<FormulaCosts> MeasureLinks(Communicator& communicator);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_MEASURE_LINKS_H_
