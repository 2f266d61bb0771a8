#include "collectives/bootstrap/network_options.h"

#include <net/if.h>

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"

namespace tessera::collectives {
namespace {

// The first of `names`, separated by commas, that this host has.
absl::StatusOr<std::string> FirstInterface(const std::string& names) {
  for (const std::string_view item : absl::StrSplit(names, ',')) {
    std::string name(absl::StripAsciiWhitespace(item));
    if (!name.empty() && if_nametoindex(name.c_str()) != 0) return name;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("GLOO_SOCKET_IFNAME=", names.substr(0, 60),
                   ": this host has no such network interface; ip link lists "
                   "them, and without the variable Gloo uses the one towards "
                   "MASTER_ADDR"));
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> NetworkOptions(
    const topology::EnvironmentLookup& lookup, absl::Duration timeout) {
  using Options = std::map<std::string, std::string>;
  if (const auto names = lookup("GLOO_SOCKET_IFNAME");
      names && !names->empty()) {
    TESSERA_ASSIGN_OR_RETURN(std::string name, FirstInterface(*names));
    return Options{{"interface", std::move(name)}};
  }
  const auto master = lookup("MASTER_ADDR");
  if (!master || master->empty()) return Options();
  TESSERA_ASSIGN_OR_RETURN(
      std::string address,
      LocalAddressTowards(*master, Deadline::After(timeout)),
      Annotate(_, absl::StrCat("MASTER_ADDR=", *master)));
  return Options{{"hostname", std::move(address)}};
}

}  // namespace tessera::collectives
