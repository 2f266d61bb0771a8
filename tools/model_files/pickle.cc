#include "tools/model_files/pickle.h"

#include <bit>
#include <cstddef>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/little_endian.h"

namespace tessera::model_files {

using Kind = PickleValue::Kind;

bool PickleValue::IsNamed(std::string_view global) const {
  if (kind == Kind::kObject) return items[0]->IsNamed(global);
  return kind == Kind::kGlobal && text == global;
}

const PickleValue* PickleValue::Find(std::string_view key) const {
  if (kind == Kind::kObject) {
    return state == nullptr || state->kind == Kind::kObject ? nullptr
                                                            : state->Find(key);
  }
  if (kind != Kind::kDictionary) return nullptr;
  for (size_t i = 0; i < items.size(); i += 2) {
    if (items[i]->kind == Kind::kText && items[i]->text == key) {
      return items[i + 1];
    }
  }
  return nullptr;
}

// A stack machine. Opcodes that build values push them; a mark is a null.
class PickleParser {
 public:
  explicit PickleParser(std::string_view bytes) : rest_(bytes), all_(bytes) {}

  absl::StatusOr<Pickle> Parse() {
    while (true) {
      opcode_ = static_cast<unsigned char>(rest_.empty() ? 0 : rest_[0]);
      const size_t at = all_.size() - rest_.size();
      if (!rest_.empty()) rest_.remove_prefix(1);
      if (opcode_ == '.' && stack_.size() == 1 && stack_[0] != nullptr) {
        pickle_.root_ = stack_[0];
        return std::move(pickle_);
      }
      if (!Execute()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("invalid pickle: opcode 0x%02x at byte %d", opcode_,
                            static_cast<int64_t>(at)));
      }
    }
  }

 private:
  // Executes opcode_. Returns false if it or its operands are invalid.
  bool Execute() {
    return ExecuteScalar() || ExecuteContainer() || ExecuteObject() ||
           ExecuteStack();
  }

  bool ExecuteScalar() {
    switch (opcode_) {
      case 'N':
        return Push({});
      case 0x88:
      case 0x89:
        return Push({.kind = Kind::kInteger, .integer = opcode_ == 0x88});
      case 'J':
        return PushInteger<int32_t>();
      case 'K':
        return PushInteger<uint8_t>();
      case 'M':
        return PushInteger<uint16_t>();
      case 0x8a:
        return PushLong<uint8_t>();
      case 0x8b:
        return PushLong<int32_t>();
      case 'G':
        return PushReal();
      case 'U':
      case 'C':
      case 0x8c:
        return PushText<uint8_t>();
      case 'T':
      case 'B':
      case 'X':
        return PushText<uint32_t>();
      case 0x8d:
      case 0x8e:
      case 0x96:
        return PushText<uint64_t>();
      default:
        return false;
    }
  }

  bool ExecuteContainer() {
    switch (opcode_) {
      case '(':
        stack_.push_back(nullptr);
        return true;
      case ']':
      case ')':
      case 0x8f:
        return Push({.kind = Kind::kSequence});
      case '}':
        return Push({.kind = Kind::kDictionary});
      case 't':
      case 'l':
      case 0x91:
        return PushMarked(Kind::kSequence);
      case 'd':
        return PushMarked(Kind::kDictionary);
      case 0x85:
      case 0x86:
      case 0x87:
        return PushLast(opcode_ - 0x84u, {.kind = Kind::kSequence});
      case 'a':
        return Extend(Kind::kSequence, PopLast(1));
      case 's':
        return Extend(Kind::kDictionary, PopLast(2));
      case 'e':
      case 0x90:
        return Extend(Kind::kSequence, PopMarked());
      case 'u':
        return Extend(Kind::kDictionary, PopMarked());
      default:
        return false;
    }
  }

  bool ExecuteObject() {
    switch (opcode_) {
      case 'c': {
        const std::optional<std::string_view> module = TakeLine();
        const std::optional<std::string_view> name = TakeLine();
        return module && name &&
               Push({.kind = Kind::kGlobal,
                     .text = absl::StrCat(*module, " ", *name)});
      }
      case 0x93: {
        const auto names = PopLast(2);
        return names && (*names)[0]->is(Kind::kText) &&
               (*names)[1]->is(Kind::kText) &&
               Push({.kind = Kind::kGlobal,
                     .text = absl::StrCat((*names)[0]->text, " ",
                                          (*names)[1]->text)});
      }
      case 'R':
      case 0x81:
        return PushLast(2, {.kind = Kind::kObject});
      case 0x92:
        return PushLast(3, {.kind = Kind::kObject});
      case 'Q':
        return PushLast(1, {.kind = Kind::kPersistent});
      case 'b': {
        const auto state = PopLast(1);
        PickleValue* const object = Top();
        if (!state || object == nullptr || !object->is(Kind::kObject)) {
          return false;
        }
        object->state = (*state)[0];
        return true;
      }
      default:
        return false;
    }
  }

  bool ExecuteStack() {
    switch (opcode_) {
      case 0x80:  // The protocol.
        return Take<uint8_t>().has_value();
      case 0x95:  // The length of a frame.
        return Take<uint64_t>().has_value();
      case '0':
        return PopLast(1).has_value();
      case '1':
        return PopMarked().has_value();
      case '2':
        if (Top() == nullptr) return false;
        stack_.push_back(stack_.back());
        return true;
      case 'q':
        return Remember(Take<uint8_t>());
      case 'r':
        return Remember(Take<uint32_t>());
      case 0x94:
        return Remember(static_cast<uint32_t>(memo_.size()));
      case 'h':
        return Recall(Take<uint8_t>());
      case 'j':
        return Recall(Take<uint32_t>());
      default:
        return false;
    }
  }

  template <typename T>
  std::optional<T> Take() {
    T value = 0;
    if (!TakeLittleEndian(&rest_, &value)) return std::nullopt;
    return value;
  }

  std::optional<std::string_view> TakeLine() {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }

  bool Push(PickleValue value) {
    pickle_.values_->push_back(std::move(value));
    stack_.push_back(&pickle_.values_->back());
    return true;
  }

  template <typename T>
  bool PushInteger() {
    const std::optional<T> value = Take<T>();
    return value && Push({.kind = Kind::kInteger, .integer = *value});
  }

  // An integer of up to eight bytes, in two's complement.
  template <typename Length>
  bool PushLong() {
    const std::optional<Length> length = Take<Length>();
    if (!length || *length < 0 || *length > 8 ||
        static_cast<size_t>(*length) > rest_.size()) {
      return false;
    }
    uint64_t bits = 0;
    for (Length i = 0; i < *length; ++i) {
      bits |= uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
    }
    const int unused = 64 - 8 * static_cast<int>(*length);
    rest_.remove_prefix(static_cast<size_t>(*length));
    if (unused == 64) return Push({.kind = Kind::kInteger});
    return Push({.kind = Kind::kInteger,
                 .integer = static_cast<int64_t>(bits << unused) >> unused});
  }

  bool PushReal() {  // The only big-endian operand.
    const std::optional<uint64_t> bits = Take<uint64_t>();
    return bits &&
           Push({.kind = Kind::kReal,
                 .real = std::bit_cast<double>(__builtin_bswap64(*bits))});
  }

  template <typename Length>
  bool PushText() {
    const std::optional<Length> length = Take<Length>();
    if (!length || *length > rest_.size()) return false;
    const std::string text(rest_.substr(0, *length));
    rest_.remove_prefix(*length);
    return Push({.kind = Kind::kText, .text = text});
  }

  PickleValue* Top() { return stack_.empty() ? nullptr : stack_.back(); }

  using Values = std::vector<const PickleValue*>;

  // Removes the last values; nothing if there are fewer above the last mark.
  std::optional<Values> PopLast(size_t count) {
    if (stack_.size() < count) return std::nullopt;
    Values values(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    for (const PickleValue* const value : values) {
      if (value == nullptr) return std::nullopt;
    }
    stack_.resize(stack_.size() - count);
    return values;
  }

  // Removes the values above the last mark, and the mark.
  std::optional<Values> PopMarked() {
    size_t mark = stack_.size();
    while (mark > 0 && stack_[mark - 1] != nullptr) --mark;
    if (mark == 0) return std::nullopt;
    Values values(stack_.begin() + static_cast<ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return values;
  }

  bool PushLast(size_t count, PickleValue value) {
    std::optional<Values> items = PopLast(count);
    if (!items) return false;
    value.items = *std::move(items);
    return Push(std::move(value));
  }

  bool PushMarked(Kind kind) {
    const std::optional<Values> items = PopMarked();
    return items && Push({.kind = kind}) && Extend(kind, items);
  }

  // Appends to the last value. Subclasses of dictionaries and lists are objects
  // until something is appended to them.
  bool Extend(Kind kind, const std::optional<Values>& items) {
    PickleValue* const container = Top();
    if (!items || container == nullptr) return false;
    if (container->is(Kind::kObject)) {
      container->items.clear();
      container->kind = kind;
    }
    if (!container->is(kind)) return false;
    if (kind == Kind::kDictionary && items->size() % 2 != 0) return false;
    container->items.insert(container->items.end(), items->begin(),
                            items->end());
    return true;
  }

  bool Remember(std::optional<uint32_t> index) {
    if (!index || Top() == nullptr) return false;
    memo_[*index] = Top();
    return true;
  }

  bool Recall(std::optional<uint32_t> index) {
    const auto found = index ? memo_.find(*index) : memo_.end();
    if (found == memo_.end()) return false;
    stack_.push_back(found->second);
    return true;
  }

  std::string_view rest_;
  std::string_view all_;
  unsigned opcode_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  absl::flat_hash_map<uint32_t, PickleValue*> memo_;
};

absl::StatusOr<Pickle> ParsePickle(std::string_view bytes) {
  return PickleParser(bytes).Parse();
}

void PickleWriter::Integer(int64_t value) {
  if (std::numeric_limits<int32_t>::min() <= value &&
      value <= std::numeric_limits<int32_t>::max()) {
    bytes_ += 'J';
    AppendLittleEndian(static_cast<int32_t>(value), &bytes_);
    return;
  }
  bytes_ += "\x8a\x08";
  AppendLittleEndian(value, &bytes_);
}

void PickleWriter::Real(double value) {
  bytes_ += 'G';
  AppendLittleEndian(__builtin_bswap64(std::bit_cast<uint64_t>(value)),
                     &bytes_);
}

void PickleWriter::Text(std::string_view text) {
  bytes_ += 'X';
  AppendLittleEndian(static_cast<uint32_t>(text.size()), &bytes_);
  bytes_ += text;
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  absl::StrAppend(&bytes_, "c", module, "\n", name, "\n");
}

void PickleWriter::Object(std::string_view module, std::string_view name) {
  Global(module, name);
  bytes_ += ")\x81";
}

}  // namespace tessera::model_files
