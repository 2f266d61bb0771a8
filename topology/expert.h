// Expert parallelism: an expert axis taken out of dp x cp x tp.
//
//   // dp4, tp2 and 8 experts' ranks: ep groups run over tensor and data ranks.
//   TESSERA_ASSIGN_OR_RETURN(Mesh moe, WithExpertAxes(mesh, AxisSize(8)));
//   moe.GroupsAlong("ep");    moe.GroupsAlong("edp");    moe.GroupsAlong("tp");
//
// The ranks of one pipeline stage (and of every axis other than dp, cp, tp)
// are divided anew into etp (tensor inside an expert, fastest), ep (which
// experts) and edp (replicas of an expert, slowest), as in Megatron-LM's
// "MoE Parallel Folding", arXiv 2504.14960. Dense layers go on using dp, cp,
// tp.
#ifndef TESSERA_TOPOLOGY_EXPERT_H_
#define TESSERA_TOPOLOGY_EXPERT_H_

#include "absl/status/statusor.h"
#include "topology/mesh.h"

namespace tessera::topology {

// `mesh` with a further division in which its axes named dp, cp and tp (those
// that it has) give way to etp, ep and edp; edp is what is left of their
// product. InvalidArgument where etp * ep does not divide the product; the
// message lists the sizes that do.
absl::StatusOr<Mesh> WithExpertAxes(const Mesh& mesh, AxisSize ep,
                                    AxisSize etp = AxisSize(1));

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_EXPERT_H_
