// For tests: executes a schedule by brute force, one step of any rank at a
// time, until all are done or none can continue. It shares only the rules with
// Validate. Ranks are deterministic, so the order of steps does not matter.
#ifndef TESSERA_PIPELINE_PROOF_TESTING_ORACLE_H_
#define TESSERA_PIPELINE_PROOF_TESTING_ORACLE_H_

#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Returns true if the schedule runs to its end and does everything once.
bool OracleAllows(const Schedule& schedule, const ValidateOptions& options);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_TESTING_ORACLE_H_
