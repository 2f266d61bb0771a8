// Python's pickles as values: ParsePickle reads one without executing anything,
// and the Pickle functions write the few forms that PyTorch's files need.
//
//   TESSERA_ASSIGN_OR_RETURN(const Pickle pickle, ParsePickle(bytes));
//   const PickleValue* const size = pickle.root().Find("size");
//
// Source: the opcodes of CPython's Lib/pickletools.py, protocols 2 to 5.
#ifndef TESSERA_TOOLS_MODEL_FILES_PICKLE_H_
#define TESSERA_TOOLS_MODEL_FILES_PICKLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::model_files {

// A value of a pickle. Values may be shared and may contain themselves.
struct PickleValue {
  enum class Kind {
    kNone,
    kInteger,     // integer; also booleans.
    kReal,        // real
    kText,        // text; also bytes.
    kSequence,    // items; tuples, lists and sets.
    kDictionary,  // items: keys and values alternate.
    kGlobal,      // text: "module name".
    kObject,      // items: the callable and its arguments; state, or null.
    kPersistent,  // items: the identifier of something outside of the pickle.
  };

  Kind kind = Kind::kNone;
  int64_t integer = 0;
  double real = 0;
  std::string text = {};
  std::vector<const PickleValue*> items = {};
  const PickleValue* state = nullptr;

  bool is(Kind other) const { return kind == other; }
  // True if this is the global "module name", or an object that it makes.
  bool IsNamed(std::string_view global) const;
  // The value of a text key, in a dictionary or in the attributes of an object;
  // null if there is none.
  const PickleValue* Find(std::string_view key) const;
};

// The values of a pickle, which live as long as this object.
class Pickle {
 public:
  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleParser;

  std::unique_ptr<std::deque<PickleValue>> values_ =
      std::make_unique<std::deque<PickleValue>>();
  const PickleValue* root_ = nullptr;
};

// InvalidArgument, with the offset, if an opcode is unknown or malformed, an
// operand is missing, or there is no result. Memory is bounded by a small
// multiple of the size of `bytes`.
absl::StatusOr<Pickle> ParsePickle(std::string_view bytes);

// Writes a pickle of protocol 2. Each call appends a value; containers are
// opened, filled and closed.
//
//   PickleWriter writer;
//   writer.OpenDictionary();
//   writer.Text("step");
//   writer.Integer(3);
//   writer.CloseDictionary();
//   const std::string bytes = writer.Finish();
class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}

  void None() { bytes_ += 'N'; }
  void Boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void Integer(int64_t value);
  void Real(double value);
  void Text(std::string_view text);
  void Global(std::string_view module, std::string_view name);
  void OpenTuple() { bytes_ += '('; }
  void CloseTuple() { bytes_ += 't'; }
  void OpenList() { bytes_ += "]("; }
  void CloseList() { bytes_ += 'e'; }
  void OpenDictionary() { bytes_ += "}("; }
  void CloseDictionary() { bytes_ += 'u'; }
  // Calls the global before the last value with the tuple that is the last
  // value.
  void Call() { bytes_ += 'R'; }
  // Makes an object of a global without calling its constructor; SetState then
  // takes the last value.
  void Object(std::string_view module, std::string_view name);
  void SetState() { bytes_ += 'b'; }
  // Replaces the last value by the object outside of the pickle that it names.
  void Persistent() { bytes_ += 'Q'; }
  // Ends the pickle.
  std::string Finish() { return std::move(bytes_ += '.'); }

 private:
  std::string bytes_;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_PICKLE_H_
