// Which algorithm has a form of which operation. There are no silent
// substitutes: what is not listed here is refused.
//
//                     all_  re-   reduce_  all_    broad- gath- scat- all_to_
//                     reduce duce scatter  gather  cast   er    ter   all
//   ring                x           x u     x u
//   tree                x     x                      x     x     x           b
//   recursive_doubling  x                   x u                              b
//   halving_doubling    x     x     x u              x
//   hierarchical        x     x     x u     x u      x                       b
//   chain               x     x                      x
//   bruck                                   x u                        x
//   pairwise            x           x u     x u            x     x     x u
//
// u: uneven blocks too; b: barrier. The engine's own is not an algorithm over a
// transport.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_SUPPORTS_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_SUPPORTS_H_

#include <vector>

#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// Whether RunAlgorithm can carry out the operation by this algorithm, on any
// number of ranks and for any count.
bool Supports(Algorithm algorithm, OpKind kind, bool uneven);

// All that support it, in the order of their numbers.
std::vector<Algorithm> AlgorithmsFor(OpKind kind, bool uneven);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_SUPPORTS_H_
