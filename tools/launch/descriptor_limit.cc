#include "tools/launch/descriptor_limit.h"

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::tools {

absl::StatusOr<std::unique_ptr<DescriptorLimit>> DescriptorLimit::Raise(
    rlim_t count) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read the descriptor limit");
  }
  if (limit.rlim_max < count) {
    return absl::ResourceExhaustedError(absl::StrCat(
        count, " descriptors are needed, but only ", limit.rlim_max,
        " are allowed; raise the hard limit (ulimit -Hn)"));
  }
  std::unique_ptr<DescriptorLimit> result(new DescriptorLimit(limit));
  if (limit.rlim_cur < count) {
    limit.rlim_cur = count;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      return absl::ErrnoToStatus(errno, "cannot raise the descriptor limit");
    }
  }
  return result;
}

DescriptorLimit::~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &original_); }

}  // namespace tessera::tools
