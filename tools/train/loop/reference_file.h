// The file of a run's reference log-probabilities (TrainRank::references), from
// which the run resumes.
//
//   WriteReferences(path, identity, rank.references());
//   TESSERA_ASSIGN_OR_RETURN(std::vector<double> references,
//                            ReadReferences(path, identity));
#ifndef TESSERA_TOOLS_TRAIN_LOOP_REFERENCE_FILE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_REFERENCE_FILE_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/checkpoint/run_identity.h"

namespace tessera::train {

// In --run_dir.
inline constexpr std::string_view kReferenceFile = "references.bin";

// Replaces the file. Besides the numbers it has a checksum and the fingerprints
// of the model's configuration and of the data.
absl::Status WriteReferences(const std::string& path,
                             const RunIdentity& identity,
                             std::span<const double> references);

// InvalidArgument if the file belongs to another model or other data; DataLoss
// if it is damaged; otherwise the system's error.
absl::StatusOr<std::vector<double>> ReadReferences(const std::string& path,
                                                   const RunIdentity& identity);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_REFERENCE_FILE_H_
