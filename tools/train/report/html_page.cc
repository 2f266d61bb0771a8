#include "tools/train/report/html_page.h"

#include "absl/strings/str_cat.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::train {

using pipeline::XmlText;

std::string_view HtmlHead() {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta "
         "charset=\"utf-8\"/>\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
         "'none'; style-src 'unsafe-inline'\"/>\n"
         "<style>"
         "body{font-family:Helvetica,Arial,sans-serif;max-width:960px;margin:"
         "1em "
         "auto;color:#1a1a20;padding:0 "
         "1em}svg{max-width:100%;height:auto;display:"
         "block;margin:0.5em 0}table{border-collapse:collapse;font-size:13px}"
         "th{text-align:left;font-weight:normal;color:#555;padding:2px 1em 2px "
         "0;"
         "vertical-align:top}td{padding:2px "
         "0;overflow-wrap:anywhere;white-space:"
         "pre-line}"
         "h1{font-size:20px}h2{font-size:16px}</style>\n";
}

std::string HtmlRow(std::string_view name, std::string_view value) {
  return absl::StrCat("<tr><th>", XmlText(name), "</th><td>", XmlText(value),
                      "</td></tr>\n");
}

std::string HtmlTable(std::string_view name, std::string_view rows) {
  return absl::StrCat("<table data-name=\"", name, "\">\n", rows, "</table>\n");
}

}  // namespace tessera::train
