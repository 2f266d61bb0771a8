// For tests of checkpoints: a small training run with threads as ranks.
#ifndef TESSERA_TOOLS_TRAIN_TESTING_MESH_RUN_H_
#define TESSERA_TOOLS_TRAIN_TESTING_MESH_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tools/text/samples.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/step/train_rank.h"
#include "zero3/layout/state_format.h"

namespace tessera::train::testing {

// A model with fewer kv heads than four tensor ranks, and query heads and words
// that do not divide evenly.
RunOptions SmallRun();
// The same model with a mixture of eight experts, a shared expert and router
// biases in all layers except the first.
RunOptions SmallMixture();
// The same mixture with latent attention, with or without a latent vector of
// queries.
RunOptions SmallDeepSeek(bool has_query_latent);

// The identity of such a run.
RunIdentity IdentityOf(const RunOptions& options);

// Runs `body` on one thread per rank of options.mesh, on `samples` or those of
// SmallText. Returns the statuses by rank.
std::vector<absl::Status> OnEachRank(
    const RunOptions& options,
    const std::function<absl::Status(TrainRank&)>& body,
    const text::Samples* samples = nullptr);

// The first error of OnEachRank, if any.
absl::Status OnRanks(const RunOptions& options,
                     const std::function<absl::Status(TrainRank&)>& body,
                     const text::Samples* samples = nullptr);

// The losses of steps [rank.steps(), end).
absl::StatusOr<std::vector<double>> TrainTo(TrainRank& rank, int64_t end);

// The bits of whole tensors by name and part of the state, without the scales
// of blocks.
using WholeBits =
    std::map<std::pair<std::string, zero3::StatePart>, std::vector<uint64_t>>;

// Collects WholeBits from the ranks of a run.
class WholeState {
 public:
  // Adds the rank's elements. DataLoss if copies of an element have different
  // bits.
  absl::Status Add(TrainRank& rank);
  // Returns InvalidArgument if an element is missing.
  absl::StatusOr<WholeBits> bits() const;

 private:
  struct Cells {
    std::vector<uint64_t> bits;
    std::vector<bool> is_set;
  };
  absl::Status AddOne(TrainRank& rank, const ShardedModel::Part& of_model,
                      const zero3::ModelParameter& parameter,
                      zero3::StatePart part);

  mutable absl::Mutex mutex_;
  std::map<std::pair<std::string, zero3::StatePart>, Cells> cells_
      ABSL_GUARDED_BY(mutex_);
};

// Creates an empty directory in the test's directory for temporary files.
std::string NewRunDirectory(const std::string& name);

}  // namespace tessera::train::testing

#endif  // TESSERA_TOOLS_TRAIN_TESTING_MESH_RUN_H_
