#include "collectives/engine/engine_registry.h"

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<std::unique_ptr<Engine>> CreateOfTwo(const EngineSetup&) {
  TESSERA_ASSIGN_OR_RETURN(auto engines, CreateInProcessEngines(2));
  return std::move(engines.front());
}

// A world of one rank, without options.
absl::StatusOr<std::unique_ptr<Engine>> CreateAlone(const EngineSetup& setup) {
  TESSERA_RETURN_IF_ERROR(OptionReader("in_process", setup.options).Finish());
  TESSERA_ASSIGN_OR_RETURN(auto engines, CreateInProcessEngines(1));
  return std::move(engines.front());
}

const bool registered = RegisterEngine("in_process", CreateAlone);

TEST(EngineRegistryTest, LinkedEnginesAreCreatedByName) {
  ASSERT_TRUE(registered);
  EXPECT_THAT(RegisteredEngines(), Contains("in_process"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine,
                               CreateEngine("in_process", {}));
  EXPECT_EQ(engine->name(), "in_process");
  EXPECT_THAT(Caller(*engine).Run(BarrierOf()), IsOk());
}

TEST(EngineRegistryTest, RejectsUnknownNameAndListsEngines) {
  EXPECT_THAT(CreateEngine("carrier_pigeon", {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"carrier_pigeon\""),
                             HasSubstr("in_process"))));
  EXPECT_THAT(CreateEngine(std::string(10'000, 'x'), {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       Not(HasSubstr(std::string(100, 'x')))));
}

TEST(EngineRegistryTest, ExplainsMissingEngines) {
  ASSERT_TRUE(RegisterMissingEngine("absent", "there was no library"));
  EXPECT_THAT(RegisteredEngines(), Not(Contains("absent")));
  EXPECT_THAT(CreateEngine("absent", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("absent was not built in"),
                             HasSubstr("there was no library"))));
}

TEST(EngineRegistryTest, RejectsDuplicateAndInvalidRegistrations) {
  EXPECT_FALSE(RegisterEngine("in_process", CreateOfTwo));
  EXPECT_FALSE(RegisterEngine("", CreateOfTwo));
  EXPECT_FALSE(RegisterEngine("null", nullptr));
  EXPECT_THAT(CreateEngine("in_process", {}), IsOk());
}

TEST(EngineRegistryTest, RejectsEngineWithOtherRanks) {
  ASSERT_TRUE(RegisterEngine("of_two", CreateOfTwo));
  EXPECT_THAT(CreateEngine("of_two", {.rank = Rank(0), .size = 2}), IsOk());
  EXPECT_THAT(CreateEngine("of_two", {.rank = Rank(1), .size = 2}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("finds rank 0 of 2"),
                             HasSubstr("rank 1 of 2"))));
  EXPECT_THAT(
      CreateEngine("of_two", {.rank = Rank(2), .size = 2}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 of 2")));
}

TEST(EngineRegistryTest, RejectsUnknownOptions) {
  EXPECT_THAT(
      CreateEngine("in_process", {.options = {{"speed", "high"}}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("\"speed\""), HasSubstr("it has no options"))));
}

TEST(OptionReaderTest, ReadsGivenOptionsAndKeepsDefaults) {
  const std::map<std::string, std::string> options = {
      {"name", "a b"}, {"fast", "true"}, {"count", "12"}, {"timeout", "1m30s"}};
  OptionReader reader("x", options);
  std::string name, host = "h";
  bool fast = false, safe = true;
  int count = 0;
  absl::Duration timeout;
  reader.Read("name", name);
  reader.Read("host", host);
  reader.Read("fast", fast);
  reader.Read("safe", safe);
  reader.Read("count", count);
  reader.Read("timeout", timeout);
  EXPECT_THAT(reader.Finish(), IsOk());
  EXPECT_EQ(name, "a b");
  EXPECT_EQ(host, "h");
  EXPECT_TRUE(fast && safe);
  EXPECT_EQ(count, 12);
  EXPECT_EQ(timeout, absl::Seconds(90));
}

TEST(OptionReaderTest, RejectsMalformedAndUnknownOptions) {
  const std::map<std::string, std::string> options = {
      {"fast", "yes"}, {"count", "1x"}, {"timeout", "soon"}, {"other", ""}};
  bool fast = false;
  int count = 7;
  absl::Duration timeout;
  const auto refusal = [&](auto read) {
    OptionReader reader("x", options);
    read(reader);
    return reader.Finish();
  };
  EXPECT_THAT(refusal([&](OptionReader& r) { r.Read("fast", fast); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("fast is \"yes\""),
                             HasSubstr("true or false"))));
  EXPECT_THAT(refusal([&](OptionReader& r) { r.Read("count", count); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("count is \"1x\"")));
  EXPECT_EQ(count, 7);
  EXPECT_THAT(refusal([&](OptionReader& r) { r.Read("timeout", timeout); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("500ms")));
  std::string text;
  EXPECT_THAT(refusal([&](OptionReader& r) { r.Read("unused", text); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("no option"), HasSubstr("unused"))));
}

}  // namespace
}  // namespace tessera::collectives
