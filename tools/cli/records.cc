#include "tools/cli/records.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json/json.h"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string CsvField(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float()) return absl::StrCat(value.get<double>());
  if (!value.is_string()) return DumpJson(value);
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace

void RecordPrinter::Print(const Json& record, std::string_view text) {
  if (format_ == OutputFormat::kText) {
    out_ << text;
  } else if (format_ == OutputFormat::kJson) {
    out_ << (begun_ ? ",\n" : Opening()) << DumpJson(record);
  } else {
    std::string names, values;
    for (const auto& [name, value] : record.items()) {
      absl::StrAppend(&names, names.empty() ? "" : ",", name);
      absl::StrAppend(&values, values.empty() ? "" : ",", CsvField(value));
    }
    out_ << (begun_ ? "" : names + "\n") << values << "\n";
  }
  begun_ = true;
  out_.flush();
}

std::string RecordPrinter::Opening() const {
  return list_.empty() ? "[\n" : absl::StrCat("{\"", list_, "\":[\n");
}

void RecordPrinter::Finish() {
  if (format_ == OutputFormat::kJson) {
    out_ << (begun_ ? "\n" : Opening()) << (list_.empty() ? "]\n" : "]}\n");
  }
  out_.flush();
}

}  // namespace tessera::tools
