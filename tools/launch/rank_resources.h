// Allocates the resources of each rank: CPU cores and descriptors.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto cpus, CoresForRanks(4));
//   cpus[1];  // {1, 9}: both hardware threads of the second core.
#ifndef TESSERA_TOOLS_LAUNCH_RANK_RESOURCES_H_
#define TESSERA_TOOLS_LAUNCH_RANK_RESOURCES_H_

#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tessera::tools {

// Groups CPUs with the same `core_of`, in the order of the first CPU of each
// group.
std::vector<std::vector<int>> GroupByCore(
    const std::vector<int>& cpus,
    absl::FunctionRef<std::string(int cpu)> core_of);

// Returns for each of `count` ranks the CPUs of one core, ascending, among the
// CPUs that this process may use. OutOfRange if there are fewer cores.
absl::StatusOr<std::vector<std::vector<int>>> CoresForRanks(int64_t count);

// Raises the limit of open descriptors while it exists.
class DescriptorLimit {
 public:
  // Raises the soft limit to at least `count` descriptors, open ones included.
  // ResourceExhausted if the hard limit is lower.
  static absl::StatusOr<std::unique_ptr<DescriptorLimit>> Raise(rlim_t count);
  // Restores the limit.
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  // The previous limit, for programs that are started in the meantime.
  const rlimit& original() const { return original_; }

 private:
  explicit DescriptorLimit(const rlimit& original) : original_(original) {}

  rlimit original_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_RANK_RESOURCES_H_
