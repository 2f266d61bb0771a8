#include <string>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/channel/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(LocalAddressTest, LoopbackIsSeenFromLoopback) {
  const Deadline deadline = Deadline::After(absl::Seconds(10));
  EXPECT_THAT(LocalAddressTowards("127.0.0.1", deadline),
              IsOkAndHolds("127.0.0.1"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string name,
                               LocalAddressTowards("localhost", deadline));
  EXPECT_THAT(name, AnyOf("127.0.0.1", "::1"));
}

TEST(LocalAddressTest, AHostThatThereIsNotIsNamed) {
  const absl::Status status =
      LocalAddressTowards("no.such.host.invalid",
                          Deadline::After(absl::Seconds(5)))
          .status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("no.such.host.invalid"));
}

TEST(LocalAddressTest, AnAddressWithoutARouteIsNamed) {
  // 240.0.0.0/4 is reserved (RFC 1112, section 4): Linux has no route to it.
  EXPECT_THAT(
      LocalAddressTowards("255.255.255.255", Deadline::After(absl::Seconds(5))),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr("no route to \"255.255.255.255\"")));
}

}  // namespace
}  // namespace tessera::collectives
