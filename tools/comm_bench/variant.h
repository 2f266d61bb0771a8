// Variant: one way to carry an operation out that a case compares with others.
#ifndef TESSERA_TOOLS_COMM_BENCH_VARIANT_H_
#define TESSERA_TOOLS_COMM_BENCH_VARIANT_H_

#include <string>
#include <vector>

#include "collectives/operation/operation.h"
#include "tools/comm_bench/bench_options.h"
#include "tools/comm_bench/rank_session.h"
#include "tools/comm_bench/task.h"

namespace tessera::tools {

struct Variant {
  std::string name;  // Row::algorithm.
  Carrier carrier = Carrier::kDefault;
  collectives::Algorithm algorithm = collectives::Algorithm::kEngine;
  bool reproducible = false;

  friend bool operator==(const Variant&, const Variant&) = default;
};

// The variants that options.algorithms ask for and an engine has for `op`, in
// that order. "all": the engine's own where it has one, then every algorithm.
// With options.reproducible each reduction is also there a second time.
std::vector<Variant> VariantsFor(const BenchOptions& options,
                                 const Capabilities& engine,
                                 collectives::OpKind op);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_VARIANT_H_
