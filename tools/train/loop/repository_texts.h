// RepositoryTexts: what a run without --data learns: the sources and documents
// of the repository.
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> paths,
//                            FindRepositoryTexts());
#ifndef TESSERA_TOOLS_TRAIN_LOOP_REPOSITORY_TEXTS_H_
#define TESSERA_TOOLS_TRAIN_LOOP_REPOSITORY_TEXTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::train {

// A rank holds every token of them: enough for thousands of steps of the
// smallest model, and little memory.
inline constexpr int64_t kMostRepositoryBytes = int64_t{4} << 20;

// Where texts may be; "" and what is not there are passed over.
struct RepositoryPlaces {
  std::string workspace;              // The repository itself.
  std::vector<std::string> runfiles;  // Roots of what the binary carries.
};

// Under `bazel run` the workspace is BUILD_WORKSPACE_DIRECTORY. Runfiles are
// where Bazel says, or beside the program.
RepositoryPlaces PlacesOfProcess();

// FindTextsBelow the workspace; where it has none, the headers of the libraries
// that train, in one file that the binary carries. NotFound, which says what to
// give, where there is neither.
absl::StatusOr<std::vector<std::string>> FindRepositoryTexts(
    const RepositoryPlaces& places = PlacesOfProcess());

// The files *.md, then *.h, then *.cc of a directory and those below, each in
// the order of their paths, until the next one would make more than
// `most_bytes`. Passed over are hidden ones, symbolic links, build outputs
// (bazel-*), empty and binary files, and what cannot be read. Looks at 100,000
// names at most.
std::vector<std::string> FindTextsBelow(const std::string& directory,
                                        int64_t most_bytes);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_REPOSITORY_TEXTS_H_
