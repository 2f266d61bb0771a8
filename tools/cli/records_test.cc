#include "tools/cli/records.h"

#include <sstream>

#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

std::string PrintTwo(OutputFormat format, std::string_view list) {
  std::ostringstream out;
  RecordPrinter printer(format, list, out);
  printer.Print({{"name", "a, \"b\""}, {"seconds", 2.5}, {"note", nullptr}},
                "first\n");
  printer.Print({{"name", "c"}, {"seconds", 3}, {"note", "d"}}, "second\n");
  printer.Finish();
  return out.str();
}

TEST(RecordsTest, TextIsTheGivenText) {
  EXPECT_EQ(PrintTwo(OutputFormat::kText, "rows"), "first\nsecond\n");
}

TEST(RecordsTest, CsvQuotesTextsAndLeavesNullsEmpty) {
  EXPECT_EQ(PrintTwo(OutputFormat::kCsv, "rows"),
            "name,seconds,note\n\"a, \"\"b\"\"\",2.5,\nc,3,d\n");
}

TEST(RecordsTest, JsonIsOneDocument) {
  const auto rows = nlohmann::json::parse(PrintTwo(OutputFormat::kJson, ""));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["name"], "a, \"b\"");
  EXPECT_TRUE(rows[0]["note"].is_null());
  EXPECT_EQ(rows[1]["seconds"], 3);
  EXPECT_EQ(nlohmann::json::parse(PrintTwo(OutputFormat::kJson, "rows")),
            nlohmann::json({{"rows", rows}}));
  for (const char* list : {"", "rows"}) {
    std::ostringstream out;
    RecordPrinter printer(OutputFormat::kJson, list, out);
    printer.Finish();
    EXPECT_TRUE(nlohmann::json::accept(out.str())) << out.str();
  }
}

}  // namespace
}  // namespace tessera::tools
