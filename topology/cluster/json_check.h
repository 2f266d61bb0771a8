// Checks of a JSON text before it is turned into values.
#ifndef TESSERA_TOPOLOGY_CLUSTER_JSON_CHECK_H_
#define TESSERA_TOPOLOGY_CLUSTER_JSON_CHECK_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::topology {

struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;
  int max_depth = 16;
};

// InvalidArgument where `text` is larger or nested deeper than `limits`, is no
// JSON (the message gives line and column), or has an object that repeats a key
// (of which a parser would keep one in silence). Needs memory for the keys of
// the objects that are open, nothing more.
absl::Status CheckJsonText(std::string_view text, const JsonLimits& limits);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_JSON_CHECK_H_
