// PartNameOf: what the part of a checkpoint is called that a rank has.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_PART_NAME_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_PART_NAME_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/train/loop/train_rank.h"

namespace tessera::train {

// "tp0-pp1".
inline std::string PartName(int64_t tensor_rank, int64_t pipeline_rank) {
  return absl::StrCat("tp", tensor_rank, "-pp", pipeline_rank);
}

inline std::string PartNameOf(const TrainRank& rank) {
  return PartName(rank.groups().tp->rank().value(),
                  rank.groups().pp->rank().value());
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_PART_NAME_H_
