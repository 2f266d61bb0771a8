// SaveJob: one checkpoint, as a rank takes part in it.
#ifndef TESSERA_ZERO3_CHECKPOINT_SAVE_JOB_H_
#define TESSERA_ZERO3_CHECKPOINT_SAVE_JOB_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/save_report.h"
#include "zero3/checkpoint/state_blocks.h"

namespace tessera::zero3 {

struct SaveJob {
  std::string directory = "";
  int64_t keep = 0;
  absl::Duration timeout = absl::InfiniteDuration();
  FileCalls* files = nullptr;
  // What is known before: with an error, this rank takes part to say so.
  SaveReport report = {};
  // Hands over the blocks of this rank's file. Not called unless it writes.
  std::function<absl::Status(BlockUse)> for_each_block = {};
};

// A collective of `group`. The path of the checkpoint, which is complete, or
// the error, which is the same on every rank.
absl::StatusOr<std::string> RunSaveJob(collectives::Communicator& group,
                                       SaveJob job);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SAVE_JOB_H_
