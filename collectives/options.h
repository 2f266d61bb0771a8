// The options of a communicator and of a single call.
//
//   CommunicatorOptions options;
//   options.name = "data_parallel";
//   options.timeout = absl::Minutes(2);
//   TESSERA_ASSIGN_OR_RETURN(auto communicator,
//                            Communicator::Create(std::move(engine), options));
//   TESSERA_RETURN_IF_ERROR(communicator->AllReduce(
//       buffer, Reduction::Sum(), {.algorithm = Algorithm::kRing}));
#ifndef TESSERA_COLLECTIVES_OPTIONS_H_
#define TESSERA_COLLECTIVES_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/operation/operation.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::collectives {

struct CommunicatorOptions {
  // The group's name in errors, records and traces.
  std::string name = "world";

  // The longest duration of an operation, measured from the call, or on a
  // device from when the device begins it. More than 0; may be infinite.
  // CallOptions::timeout overrides it.
  absl::Duration timeout = absl::Seconds(30);

  // Selects the algorithm of each operation. Null: the engine's own algorithm
  // if it has one, otherwise DefaultAlgorithm. Subgroups inherit it.
  std::shared_ptr<const AlgorithmChooser> chooser;

  // The groups of nearby ranks, for hierarchical algorithms. Null: all ranks
  // are equally near. Subgroups inherit their part.
  std::shared_ptr<const Hierarchy> hierarchy;

  // If true, every reduction folds the inputs from left to right in rank order
  // and rounds once, so that results have the same bits for every algorithm,
  // message size and chunk size. collectives/README.md lists the cost.
  bool reproducible = false;

  // Algorithms split longer messages into chunks of this size. 0: the default.
  int64_t chunk_bytes = 0;

  // The number of operations that the flight recorder keeps. At least 1.
  int64_t recorded_operations = 512;

  // If not empty, the recorded operations are written to NAME.rank-R.json in
  // this directory when the group breaks.
  std::string dump_directory;

  // Follows the operations of this rank in this group and in all groups that
  // are split from it. Null: nothing does.
  std::shared_ptr<OperationObserver> observer;
};

struct CallOptions {
  // Overrides CommunicatorOptions::timeout.
  std::optional<absl::Duration> timeout = {};

  // Overrides the choice of CommunicatorOptions::chooser. Must be equal on all
  // ranks of the group.
  std::optional<Algorithm> algorithm = {};

  // Called once with the status when a started operation has completed, before
  // its Work is done. Called on any thread; must not wait for operations of the
  // same communicator. Run does not call it. Only for engines of the host.
  std::function<void(const absl::Status&)> on_done = {};

  // The operation begins after this event. On an engine of the host the calling
  // thread waits for it; on a device the operation's queue does.
  Event after = {};
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPTIONS_H_
