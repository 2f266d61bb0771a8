// Requests that are damaged or cut off: each is complete, incomplete, malformed
// or too long, and no prefix of a complete one is refused.
#include <string>
#include <string_view>
#include <vector>

#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "tools/train/report/metrics_server.h"

namespace tessera::train {
namespace {

using State = HttpRequest::State;

TEST(HttpRequestFuzzTest, Requests) {
  TextMutator mutator(
      {"GET /metrics HTTP/1.1\r\nHost: localhost:9400\r\nAccept: */*\r\n\r\n",
       "HEAD /metrics?a=b HTTP/1.0\n\n",
       "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"},
      {"\r\n", "\n", "\r", " ", ":", std::string(1, '\0'), "HTTP/1.1", "\xff",
       std::string(9000, 'x'), "GET /"},
      3);
  int complete = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = mutator.Next();
    const HttpRequest request = ParseHttpRequest(bytes);
    if (request.state != State::kComplete) continue;
    ++complete;
    ASSERT_FALSE(request.method.empty());
    ASSERT_EQ(request.target.substr(0, 1), "/");
    // Complete at some length, incomplete before it, the same after it.
    size_t length = 0;
    while (ParseHttpRequest(std::string_view(bytes).substr(0, length)).state ==
           State::kIncomplete) {
      ++length;
    }
    ASSERT_LE(length, kMostRequestBytes);
    const HttpRequest first =
        ParseHttpRequest(std::string_view(bytes).substr(0, length));
    ASSERT_EQ(first.state, State::kComplete);
    ASSERT_EQ(first.method, request.method);
    ASSERT_EQ(first.target, request.target);
  }
  EXPECT_GT(complete, 1000);
}

TEST(HttpRequestFuzzTest, EveryRequestEndsWithinTheLimit) {
  for (const char* const piece : {"x", "\r", "GET ", "a: b\r\n"}) {
    std::string bytes = "GET /metrics HTTP/1.1\r\n";
    while (bytes.size() < kMostRequestBytes) bytes += piece;
    EXPECT_NE(ParseHttpRequest(bytes).state, State::kIncomplete);
    EXPECT_NE(ParseHttpRequest(bytes).state, State::kComplete);
  }
  // The last byte of the limit may complete one.
  std::string whole = "GET /metrics HTTP/1.1\r\na: ";
  whole += std::string(kMostRequestBytes - whole.size() - 4, 'x') + "\r\n\r\n";
  ASSERT_EQ(whole.size(), kMostRequestBytes);
  EXPECT_EQ(ParseHttpRequest(whole).state, State::kComplete);
  EXPECT_EQ(ParseHttpRequest("x" + whole).state, State::kTooLong);
}

}  // namespace
}  // namespace tessera::train
