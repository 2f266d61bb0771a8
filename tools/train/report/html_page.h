// The head, the style and the tables of pages of HTML: of runs (run_page.h) and
// of //tools/flight. They load nothing.
//
//   HtmlHead() + "<title>run</title></head><body>" +
//       HtmlTable("summary", HtmlRow("steps", "60")) + "</body></html>"
#ifndef TESSERA_TOOLS_TRAIN_REPORT_HTML_PAGE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_HTML_PAGE_H_

#include <string>
#include <string_view>

namespace tessera::train {

// Up to the style; the title and the end of the head follow.
std::string_view HtmlHead();

// Texts are escaped; lines of `value` stay lines.
std::string HtmlRow(std::string_view name, std::string_view value);
// `rows` are HtmlRow's.
std::string HtmlTable(std::string_view name, std::string_view rows);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_HTML_PAGE_H_
