#include "collectives/bootstrap/network_options.h"

#include <map>
#include <optional>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

topology::EnvironmentLookup Variables(std::map<std::string, std::string> of) {
  return [of = std::move(of)](
             std::string_view name) -> std::optional<std::string> {
    const auto variable = of.find(std::string(name));
    if (variable == of.end()) return std::nullopt;
    return variable->second;
  };
}

absl::StatusOr<std::map<std::string, std::string>> OptionsFor(
    std::map<std::string, std::string> variables) {
  return NetworkOptions(Variables(std::move(variables)), absl::Seconds(10));
}

TEST(NetworkOptionsTest, ChoosesInterfaceOrAddress) {
  EXPECT_THAT(OptionsFor({}), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(
      OptionsFor({{"MASTER_ADDR", "127.0.0.1"}}),
      IsOkAndHolds(UnorderedElementsAre(Pair("hostname", "127.0.0.1"))));
  EXPECT_THAT(OptionsFor({{"GLOO_SOCKET_IFNAME", "none7, lo"},
                          {"MASTER_ADDR", "127.0.0.1"}}),
              IsOkAndHolds(UnorderedElementsAre(Pair("interface", "lo"))));
  EXPECT_THAT(OptionsFor({{"GLOO_SOCKET_IFNAME", "none7"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no such network interface")));
}

TEST(NetworkOptionsTest, EncryptsIfTheVariableIsOne) {
  EXPECT_THAT(OptionsFor({{"TESSERA_ENCRYPT_DATA", "1"}}),
              IsOkAndHolds(UnorderedElementsAre(Pair("encrypt", "true"))));
  for (const char* value : {"0", ""}) {
    EXPECT_THAT(OptionsFor({{"TESSERA_ENCRYPT_DATA", value}}),
                IsOkAndHolds(IsEmpty()));
  }
  EXPECT_THAT(OptionsFor({{"TESSERA_ENCRYPT_DATA", "yes"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("TESSERA_ENCRYPT_DATA=yes: use 1")));
}

TEST(NetworkOptionsTest, NoteNamesTheNetworkUnlessDataIsEncrypted) {
  EXPECT_EQ(ClearDataNote({{"hostname", "10.0.0.1"}}, "--x"),
            "data between hosts is not encrypted, on the network of address "
            "10.0.0.1; --x encrypts it");
  EXPECT_THAT(ClearDataNote({{"interface", "eth0"}}, "--x"),
              HasSubstr("of interface eth0;"));
  EXPECT_EQ(ClearDataNote({{"interface", "eth0"}, {"encrypt", "true"}}, "--x"),
            "");
}

}  // namespace
}  // namespace tessera::collectives
