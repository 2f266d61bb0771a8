// The children of this process, whoever started them, and who inherits the
// children of those that die.
#ifndef TESSERA_TOOLS_LAUNCH_CHILDREN_H_
#define TESSERA_TOOLS_LAUNCH_CHILDREN_H_

#include <sys/types.h>

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::tools {

// The pids of this process's children, those that have ended but were not
// waited for among them, ascending. Unavailable where /proc cannot be read.
absl::StatusOr<std::vector<pid_t>> ListChildren();

// The parent's pid in the text of a /proc/PID/stat, or nothing where the text
// is none. Form: proc(5); the command's name may hold anything.
std::optional<pid_t> ParentInStat(std::string_view stat);

// While it lives, the descendants of this process become its children when
// their parents die, instead of init's.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_CHILDREN_H_
