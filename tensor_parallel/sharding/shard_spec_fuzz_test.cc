// Damaged specs are rejected with an error, or parse to a spec that survives a
// round trip.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/text_mutator.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {
namespace {

TEST(ShardSpecFuzzTest, DamagedTextIsRefusedOrRoundTrips) {
  TextMutator mutator(
      {"[]", "[-]", "[tp, -]", "[-, -] partial {dp}",
       "[dp, (tp, cp):balanced, -] partial {ep, pp}", "[tp:blocks(4)]",
       "[-, tp:fused(32/8/1 8/8/1r 8/8/1r)] partial {dp_shard}"},
      {"[",
       "]",
       "(",
       ")",
       "{",
       "}",
       ",",
       ":",
       "/",
       "-",
       "r",
       " ",
       "partial",
       "ceil",
       "balanced",
       "blocks(",
       "fused(",
       "0",
       "-1",
       "tp",
       "A",
       "9223372036854775808",
       std::string(1, '\0'),
       "\xff"},
      /*seed=*/1);
  int read = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::string text = mutator.Next();
    const absl::StatusOr<ShardSpec> spec = ShardSpec::Parse(text);
    if (!spec.ok()) {
      ASSERT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(spec.status().message().empty());
      ASSERT_LT(spec.status().message().size(), 700u) << text;
      continue;
    }
    ++read;
    const std::string printed = spec->ToString();
    TESSERA_ASSERT_OK_AND_ASSIGN(const ShardSpec again,
                                 ShardSpec::Parse(printed));
    ASSERT_EQ(again, *spec) << text;
    ASSERT_EQ(again.ToString(), printed) << text;
  }
  EXPECT_GT(read, 1000);
}

}  // namespace
}  // namespace tessera::tensor_parallel
