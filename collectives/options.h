// What a communicator and a single call can be told.
#ifndef TESSERA_COLLECTIVES_OPTIONS_H_
#define TESSERA_COLLECTIVES_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/operation/algorithm.h"

namespace tessera::collectives {

struct CommunicatorOptions {
  // The group's name in errors, records and traces.
  std::string name = "world";

  // How long an operation may take, from call to return, unless the call says
  // otherwise. More than 0; infinite is allowed.
  absl::Duration timeout = absl::Seconds(30);

  // Which algorithm each operation takes. Null: the engine's own wherever it
  // has one (the strategy all_reduce). Subgroups inherit it.
  std::shared_ptr<const AlgorithmChooser> chooser;

  // Which ranks are near each other, for hierarchical algorithms. Null: all
  // equally. Subgroups inherit their part of it.
  std::shared_ptr<const Hierarchy> hierarchy;

  // The same bits for a given set of ranks whatever the algorithm, the size and
  // the chunks: every reduction is a left fold in the order of ranks, rounded
  // once. See collectives/README.md for what it costs.
  bool reproducible = false;

  // Messages longer than this move in pieces. 0: chosen by the algorithm.
  int64_t chunk_bytes = 0;

  // How many operations the flight recorder keeps.
  int64_t recorded_operations = 512;

  // Where the flight recorder is written when the group breaks, as
  // NAME.rank-R.json. Empty: nowhere.
  std::string dump_directory;
};

struct CallOptions {
  // Instead of CommunicatorOptions::timeout.
  std::optional<absl::Duration> timeout = {};

  // Instead of the chooser's. The same on every rank of the group.
  std::optional<Algorithm> algorithm = {};
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPTIONS_H_
