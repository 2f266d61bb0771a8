// VerifyCheckpoint: reads a whole checkpoint and checks every byte.
//
//   TESSERA_RETURN_IF_ERROR(VerifyCheckpoint("/ckpt/step-00000020"));
#ifndef TESSERA_ZERO3_CHECKPOINT_VERIFY_CHECKPOINT_H_
#define TESSERA_ZERO3_CHECKPOINT_VERIFY_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"

namespace tessera::zero3 {

// OK where the manifest is valid, there are exactly the files that it names,
// every block has its place, format and checksum, and every element of every
// parameter's state is there once. Otherwise the first mistake, and how many
// files have one.
absl::Status VerifyCheckpoint(const std::string& path);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_VERIFY_CHECKPOINT_H_
