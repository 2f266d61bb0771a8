// HostId: which machine, as seen from within a container: ranks whose HostId is
// the same can watch each other's processes and pass descriptors.
//
//   TESSERA_ASSIGN_OR_RETURN(HostId here, HostId::Self());
//   if (here == HostId::Parse(text_of_another_rank)) ...
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_HOST_ID_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_HOST_ID_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace tessera::collectives {

class HostId {
 public:
  HostId() = default;

  // Of this process: the kernel's boot id (another machine, or the same one
  // started again, has another), and its pid and network namespaces (another
  // container has others): pids mean the same within the one, abstract unix
  // sockets within the other. Unavailable where /proc does not say.
  static absl::StatusOr<HostId> Self();

  // Reads ToString's text. InvalidArgument where it is none.
  static absl::StatusOr<HostId> Parse(std::string_view text);

  // "3f0c...-...:4026531836:4026531840"; at most 100 bytes.
  const std::string& ToString() const { return text_; }

  friend auto operator<=>(const HostId&, const HostId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const HostId& id) {
    return H::combine(std::move(state), id.text_);
  }
  friend std::ostream& operator<<(std::ostream& os, const HostId& id) {
    return os << id.text_;
  }

 private:
  explicit HostId(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// The machine's name, for messages; at most 64 bytes of it, "?" where it has
// none.
std::string HostName();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_HOST_ID_H_
