// The cost of each algorithm by latency, bandwidth and reduction, as far as
// such formulas go. With n ranks, messages of m bytes, r = ceil(log2 n), alpha
// seconds a message, beta seconds a byte moved, gamma seconds a byte combined
// (0 for what does not reduce), and p = m (n-1)/n:
//
//   ring                all_reduce       2(n-1) alpha + 2 p beta + p gamma
//                       parted kinds     (n-1) alpha + p (beta + gamma)
//   recursive_doubling  all_reduce       r (alpha + m (beta + gamma))
//                       all_gather       r alpha + p beta
//   halving_doubling    reduce_scatter   r alpha + p (beta + gamma)
//                       others           2 r alpha + 2 p beta + p gamma
//   tree                all_reduce       2 (r alpha + m (beta + gamma))
//                       gather, scatter  r alpha + p beta
//                       others           r alpha + m (beta + gamma)
//   chain               all_reduce       2 ((n-1) alpha + m (beta + gamma))
//                       others           (n-1) alpha + m (beta + gamma)
//   bruck               all_to_all       r (alpha + m/2 beta)
//                       all_gather       r alpha + p beta
//   pairwise            all              (n-1) alpha + p (beta + gamma)
//   hierarchical        halving_doubling (a tree for rooted kinds and barriers)
//                       within a host and across hosts, one after the other
//
// Where a group spans hosts, flat algorithms pay the far link's alpha and beta.
//
// Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective
// Communication Operations in MPICH (IJHPCA 19, 2005); Sanders, Speck and
// Traeff, Two-tree algorithms (Parallel Computing 35, 2009); Bruck et al.
// (IEEE TPDS 8, 1997).
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_FORMULA_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_FORMULA_H_

#include <cstdint>

#include "collectives/adaptive/fit.h"
#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct FormulaCosts {
  Line near;         // A message within a host (or socket).
  Line far;          // Between them; as near where there is only one.
  double gamma = 0;  // Seconds to combine a byte with another.

  friend bool operator==(const FormulaCosts&, const FormulaCosts&) = default;
};

// More than 0 (a nanosecond is added), also for what is not listed above.
double FormulaSeconds(const FormulaCosts& costs, Algorithm algorithm,
                      OpKind kind, int64_t bytes, int64_t ranks,
                      int64_t ranks_per_host);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_FORMULA_H_
