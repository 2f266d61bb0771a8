// DescriptorLimit: room for many descriptors while it lives.
#ifndef TESSERA_TOOLS_LAUNCH_DESCRIPTOR_LIMIT_H_
#define TESSERA_TOOLS_LAUNCH_DESCRIPTOR_LIMIT_H_

#include <sys/resource.h>

#include <memory>

#include "absl/status/statusor.h"

namespace tessera::tools {

class DescriptorLimit {
 public:
  // Raises the soft limit to `count`, which includes those that are open, where
  // it is lower. ResourceExhausted where the hard limit forbids it.
  static absl::StatusOr<std::unique_ptr<DescriptorLimit>> Raise(rlim_t count);
  // Puts the limit back.
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  // What it was before, for programs that are started meanwhile.
  const rlimit& original() const { return original_; }

 private:
  explicit DescriptorLimit(const rlimit& original) : original_(original) {}

  rlimit original_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_DESCRIPTOR_LIMIT_H_
