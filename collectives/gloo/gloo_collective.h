// RunGlooCollective: one collective by Gloo's functions.
#ifndef TESSERA_COLLECTIVES_GLOO_GLOO_COLLECTIVE_H_
#define TESSERA_COLLECTIVES_GLOO_GLOO_COLLECTIVE_H_

#include "absl/status/status.h"
#include "collectives/engine/operation_context.h"
#include "collectives/gloo/gloo_group.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// What Gloo has: everything but reduce_scatter, which it has for no uneven
// blocks and no types of ours.
bool GlooImplements(OpKind kind);

// As Engine::Run, for those kinds.
absl::Status RunGlooCollective(GlooGroup& group, const Operation& operation,
                               OperationContext& context);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_GLOO_COLLECTIVE_H_
