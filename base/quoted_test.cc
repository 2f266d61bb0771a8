#include "base/quoted.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(QuotedTest, EscapesUnprintableBytes) {
  EXPECT_EQ(Quoted("layer 1"), "\"layer 1\"");
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted(std::string_view("a\0z\n\x80", 5)), "\"a\\x00z\\n\\x80\"");
}

TEST(QuotedTest, CutsLongText) {
  EXPECT_EQ(Quoted(std::string(100, 'a')), "\"" + std::string(100, 'a') + "\"");
  EXPECT_EQ(Quoted(std::string(1'000'000, 'a')),
            "\"" + std::string(100, 'a') + "...\"");
}

TEST(QuotedTest, PathsKeepTheirEnds) {
  EXPECT_EQ(QuotedPath("dir/file"), "\"dir/file\"");
  EXPECT_EQ(QuotedPath(std::string(2000, 'd') + "/file"),
            "\"..." + std::string(995, 'd') + "/file\"");
}

}  // namespace
}  // namespace tessera
