#include "pipeline/simulate/links.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

absl::Status CheckLink(const Link& link, const std::string& name) {
  if (!std::isfinite(link.latency) || link.latency < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has a latency of ", link.latency,
                     "; latencies are finite and not negative"));
  }
  if (!(link.bandwidth > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has a bandwidth of ", link.bandwidth,
                     "; bandwidths are more than 0, or infinite"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLinks(const Links& links, int64_t ranks) {
  TESSERA_RETURN_IF_ERROR(CheckLink(links.everywhere, "the link everywhere"));
  for (const auto& [ends, link] : links.exceptions) {
    const auto [sender, receiver] = ends;
    const std::string name =
        absl::StrCat("the link from rank ", sender, " to ", receiver);
    TESSERA_RETURN_IF_ERROR(CheckLink(link, name));
    const auto is_rank = [&](int32_t r) { return r >= 0 && r < ranks; };
    if (is_rank(sender) && is_rank(receiver) && sender != receiver) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " joins no two of ", ranks,
                     " ranks; both are from 0 to ", ranks - 1, " and differ"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::pipeline
