// OutputFormat: the value of --format, the same in every tool.
#ifndef TESSERA_TOOLS_CLI_OUTPUT_FORMAT_H_
#define TESSERA_TOOLS_CLI_OUTPUT_FORMAT_H_

#include <string>
#include <string_view>

namespace tessera::tools {

enum class OutputFormat { kText, kJson, kCsv };

inline bool AbslParseFlag(std::string_view text, OutputFormat* format,
                          std::string* error) {
  if (text == "text") {
    *format = OutputFormat::kText;
  } else if (text == "json") {
    *format = OutputFormat::kJson;
  } else if (text == "csv") {
    *format = OutputFormat::kCsv;
  } else {
    *error = "expected text, json or csv";
    return false;
  }
  return true;
}

inline std::string AbslUnparseFlag(OutputFormat format) {
  switch (format) {
    case OutputFormat::kJson:
      return "json";
    case OutputFormat::kCsv:
      return "csv";
    case OutputFormat::kText:
      break;
  }
  return "text";
}

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CLI_OUTPUT_FORMAT_H_
