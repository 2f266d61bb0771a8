#include "pipeline/draw/svg_writer.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SvgWriterTest, TextIsEscaped) {
  EXPECT_EQ(XmlText("a<b & \"c\" > 'd'"),
            "a&lt;b &amp; &quot;c&quot; &gt; &#39;d&#39;");
  EXPECT_EQ(XmlText(""), "");
  EXPECT_EQ(XmlText("]]>"), "]]&gt;");
}

TEST(SvgWriterTest, KeepsUtf8AndReplacesOtherBytes) {
  EXPECT_EQ(XmlText("\xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80"),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80");
  EXPECT_EQ(XmlText(std::string("\0\x01\x1f\x7f\t", 5)), "???\x7f\t");
  EXPECT_EQ(XmlText("\x80\xff"), "??");
  EXPECT_EQ(XmlText("\xc3"), "?");                 // Cut short.
  EXPECT_EQ(XmlText("\xc3(\xc0\xaf"), "?(??");     // Overlong.
  EXPECT_EQ(XmlText("\xe0\x80\xaf"), "???");       // Overlong.
  EXPECT_EQ(XmlText("\xed\xa0\x80"), "???");       // A surrogate.
  EXPECT_EQ(XmlText("\xef\xbf\xbf"), "???");       // U+FFFF.
  EXPECT_EQ(XmlText("\xf4\x90\x80\x80"), "????");  // Beyond U+10FFFF.
}

TEST(SvgWriterTest, PixelsAreShort) {
  EXPECT_EQ(PixelText(12), "12");
  EXPECT_EQ(PixelText(12.50), "12.5");
  EXPECT_EQ(PixelText(0.256), "0.26");
  EXPECT_EQ(PixelText(-0.001), "0");
  EXPECT_EQ(PixelText(100), "100");
}

TEST(SvgWriterTest, WritesADocument) {
  SvgWriter svg(10.5, 20, "a & b");
  svg.Begin("p\"q");
  svg.Box({.x = 1, .y = 2, .width = 3, .height = 4, .fill = "#123456"}, "<");
  svg.Text({.x = 1, .y = 2, .classes = "middle", .fill = "red", .size = 9},
           "&");
  svg.Line(0, 1, 2, 3, "stroke=\"red\"");
  svg.Path("M0 0H1", "stroke=\"red\"");
  svg.End();
  const std::string text = std::move(svg).Finish();
  EXPECT_THAT(text, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\" "
                               "width=\"10.5\" height=\"20\""));
  EXPECT_THAT(text, HasSubstr("<title>a &amp; b</title>"));
  EXPECT_THAT(
      text,
      HasSubstr("<g data-name=\"p&quot;q\">\n"
                "<rect x=\"1\" y=\"2\" width=\"3\" height=\"4\" "
                "fill=\"#123456\"><title>&lt;</title></rect>\n"
                "<text x=\"1\" y=\"2\" class=\"middle\" fill=\"red\" "
                "style=\"font-size:9px\">&amp;</text>\n"
                "<line x1=\"0\" y1=\"1\" x2=\"2\" y2=\"3\" stroke=\"red\"/>\n"
                "<path d=\"M0 0H1\" fill=\"none\" stroke=\"red\"/>\n"
                "</g>\n</svg>\n"));
}

}  // namespace
}  // namespace tessera::pipeline
