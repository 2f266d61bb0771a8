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

using Options = std::map<std::string, std::string>;

absl::StatusOr<Options> AddressOptions(
    const topology::EnvironmentLookup& lookup, absl::Duration timeout) {
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

}  // namespace

absl::StatusOr<bool> EncryptsData(const topology::EnvironmentLookup& lookup) {
  const std::string value = lookup(kEncryptDataVariable).value_or("0");
  if (value == "1") return true;
  if (value == "0" || value.empty()) return false;
  return absl::InvalidArgumentError(
      absl::StrCat(kEncryptDataVariable, "=", value.substr(0, 60),
                   ": use 1 to encrypt the data between hosts, or 0"));
}

absl::StatusOr<Options> NetworkOptions(
    const topology::EnvironmentLookup& lookup, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const bool encrypts, EncryptsData(lookup));
  TESSERA_ASSIGN_OR_RETURN(Options options, AddressOptions(lookup, timeout));
  if (encrypts) options["encrypt"] = "true";
  return options;
}

std::string ClearDataNote(const Options& options, std::string_view remedy) {
  if (options.contains("encrypt")) return "";
  const auto of = [&](const char* name) {
    const auto option = options.find(name);
    return option == options.end() ? "" : option->second;
  };
  const std::string interface = of("interface");
  return absl::StrCat("data between hosts is not encrypted, on the network of ",
                      interface.empty() ? "address " : "interface ",
                      interface.empty() ? of("hostname") : interface, "; ",
                      remedy, " encrypts it");
}

}  // namespace tessera::collectives
