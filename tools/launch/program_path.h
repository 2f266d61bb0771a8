// FindProgram: the file that a shell would run.
#ifndef TESSERA_TOOLS_LAUNCH_PROGRAM_PATH_H_
#define TESSERA_TOOLS_LAUNCH_PROGRAM_PATH_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::tools {

// `program` where it has a slash, otherwise the first executable file of that
// name in the directories of `search_path` (the value of PATH; an empty one
// means the working directory). InvalidArgument, saying where was looked and
// what to do, where there is none or it may not be executed.
absl::StatusOr<std::string> FindProgram(std::string_view program,
                                        std::string_view search_path);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_PROGRAM_PATH_H_
