// RecordPrinter: the same records as text, CSV or JSON.
//
//   RecordPrinter printer(format, "measurements", std::cout);
//   printer.Print({{"name", "ring"}, {"seconds", 2.5}}, "ring 2.5 s\n");
//   printer.Finish();
#ifndef TESSERA_TOOLS_CLI_RECORDS_H_
#define TESSERA_TOOLS_CLI_RECORDS_H_

#include <ostream>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tools/cli/cli.h"

namespace tessera::tools {

// Prints records as CSV, as one JSON document {"<list>": [...]}, or as the text
// that is given, while they are made. Without the name of a list the document
// is the array. CSV's columns are the names of the first record; a null is
// empty.
class RecordPrinter {
 public:
  RecordPrinter(OutputFormat format, std::string_view list, std::ostream& out)
      : format_(format), list_(list), out_(out) {}

  void Print(const nlohmann::ordered_json& record, std::string_view text);
  void Finish();
  bool begun() const { return begun_; }

 private:
  // The text before the first record of a JSON document.
  std::string Opening() const;

  const OutputFormat format_;
  const std::string list_;
  std::ostream& out_;
  bool begun_ = false;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CLI_RECORDS_H_
