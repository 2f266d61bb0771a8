// MeasureEngine: an engine like another one, whose collectives, and those of
// all groups made from it, are logged.
//
//   auto log = std::make_shared<CollectiveLog>();
//   TESSERA_ASSIGN_OR_RETURN(
//       auto world, Communicator::Create(
//                       MeasureEngine(std::move(engine), log), options));
#ifndef TESSERA_TOOLS_TRAIN_LOOP_MEASURED_ENGINE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_MEASURED_ENGINE_H_

#include <memory>

#include "collectives/engine/engine.h"
#include "tools/train/loop/collective_log.h"

namespace tessera::train {

// Neither is null. Messages are not logged.
std::unique_ptr<collectives::Engine> MeasureEngine(
    std::unique_ptr<collectives::Engine> engine,
    std::shared_ptr<CollectiveLog> log);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_MEASURED_ENGINE_H_
