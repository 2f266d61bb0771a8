// Inspects checkpoints: ListRuns lists those of a directory, HoldersOf finds
// the files that hold a tensor, PlaceOf and ElementAt the place of an element
// and the reverse, VerifyRun reads and checks every byte of one.
#ifndef TESSERA_TOOLS_CHECKPOINT_INSPECT_RUNS_H_
#define TESSERA_TOOLS_CHECKPOINT_INSPECT_RUNS_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/cli/cli.h"
#include "zero3/checkpoint/load_checkpoint.h"

namespace tessera::tools {

struct ListedRun {
  std::string path = "";
  std::string state = "";  // "complete", or why it is not.
  int64_t step = 0;
  int64_t ranks = 0;      // Ranks that wrote it.
  std::string mesh = "";  // Empty if it is not a run's.
  int64_t zero = 0;
  int64_t parameters = 0;  // Of the model; 0 if not a run's.
  int64_t bytes = 0;       // Size of its files.

  friend bool operator==(const ListedRun&, const ListedRun&) = default;
};

// Returns the checkpoints in the directory `path`, or in the "checkpoints" of a
// run's directory, sorted by name and including interrupted ones, or only the
// checkpoint at `path`. The system's error if the
// directory cannot be read, NotFound if there is no checkpoint.
absl::StatusOr<std::vector<ListedRun>> ListRuns(const std::string& path);

// JSON: an array of objects with the fields above.
void PrintRuns(std::span<const ListedRun> runs, OutputFormat format,
               std::ostream& out);

// The elements of the named tensors in one file of a checkpoint.
struct TensorHolder {
  std::string file = "";  // Relative to the checkpoint.
  int64_t rank = 0;       // In the shard group that wrote the part.
  int64_t elements = 0;   // Above 0.

  friend bool operator==(const TensorHolder&, const TensorHolder&) = default;
};

// Finds the files that hold the tensor `name`, or all tensors under a dotted
// prefix such as "layers.3", in the order of parts and ranks. Reads only the
// manifest. Returns the errors of SavedRun::Open; NotFound, with the nearest
// name, if there is no such tensor.
absl::StatusOr<std::vector<TensorHolder>> HoldersOf(const std::string& path,
                                                    std::string_view name);

// CSV: file,rank,elements. JSON: an array of objects with these fields.
void PrintHolders(std::span<const TensorHolder> holders, OutputFormat format,
                  std::ostream& out);

// An element of a tensor, and its place in a checkpoint.
struct ElementPlace {
  std::string tensor = "";
  int64_t index = 0;      // In the whole tensor, row by row.
  std::string file = "";  // Relative to the checkpoint.
  int64_t rank = 0;       // In the shard group that wrote the file.
  // In the rank's index space (zero3/layout/state_layout.h), the same for the
  // value, the master weight and the moments.
  int64_t offset = 0;
  std::vector<std::string> parts = {};  // "first_moment f32"

  friend bool operator==(const ElementPlace&, const ElementPlace&) = default;
};

// Finds the place of an element. Reads only the manifest. Returns the errors of
// SavedRun::Open; NotFound, with the nearest name, if there is no such tensor;
// InvalidArgument, with the number of elements, if there is no such element.
absl::StatusOr<ElementPlace> PlaceOf(const std::string& path,
                                     std::string_view tensor, int64_t index);

// The reverse. NotFound if the checkpoint has no such file or the offset is
// padding; InvalidArgument if there is no such offset.
absl::StatusOr<ElementPlace> ElementAt(const std::string& path,
                                       std::string_view file, int64_t offset);

// CSV: tensor,index,file,rank,offset,parts. JSON: an object with these fields.
void PrintPlace(const ElementPlace& place, OutputFormat format,
                std::ostream& out);

// zero3::VerifyCheckpoint, and that the parts contain each element of each
// tensor exactly once. InvalidArgument if the checkpoint is not a run's.
absl::StatusOr<zero3::VerifiedBytes> VerifyRun(
    const std::string& path,
    absl::FunctionRef<void(const zero3::VerifiedBytes&)> progress);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_INSPECT_RUNS_H_
