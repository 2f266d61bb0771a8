// OptionReader: an engine's options from the text that a user gave.
//
//   OptionReader reader("gloo", setup.options);
//   GlooOptions options;
//   reader.Read("interface", options.interface);
//   reader.Read("timeout", options.timeout);
//   TESSERA_RETURN_IF_ERROR(reader.Finish());
#ifndef TESSERA_COLLECTIVES_ENGINE_OPTION_READER_H_
#define TESSERA_COLLECTIVES_ENGINE_OPTION_READER_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera::collectives {

class OptionReader {
 public:
  // `options` outlives the reader.
  OptionReader(std::string_view engine,
               const std::map<std::string, std::string>& options)
      : engine_(engine), options_(options) {}

  // Sets `value` where the option is given: any text; "true" or "false"; a
  // whole number; a duration ("500ms", "1m30s").
  void Read(std::string_view name, std::string& value);
  void Read(std::string_view name, bool& value);
  void Read(std::string_view name, int& value);
  void Read(std::string_view name, absl::Duration& value);

  // InvalidArgument where a value could not be read, or an option was given
  // that nobody has read; lists those that were.
  absl::Status Finish() const;

 private:
  const std::string* Find(std::string_view name);
  void Refuse(std::string_view name, std::string_view allowed);

  const std::string engine_;
  const std::map<std::string, std::string>& options_;
  std::vector<std::string> known_;
  absl::Status status_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_OPTION_READER_H_
