// StackedExperts: the tensors of GPT-OSS, each with the weights or the biases
// of all experts of a layer, and their quantised form.
#ifndef TESSERA_TOOLS_MODEL_FILES_STACKED_EXPERTS_H_
#define TESSERA_TOOLS_MODEL_FILES_STACKED_EXPERTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::model_files {

// A tensor [experts, columns, rows] of a file, or [experts, rows] of biases,
// that holds a parameter of `experts` matrices of [rows, columns], one below
// the other. Where rows alternate, those of a matrix are the gates and then the
// ups of an expert, and those of the file a gate, its up, the next gate and so
// on.
struct StackedExperts {
  int64_t experts = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // 0: biases.
  bool alternates = false;

  // The numbers of a row, and of an expert.
  int64_t width() const { return columns == 0 ? 1 : columns; }
  int64_t elements() const { return rows * width(); }
  // The shape of the tensor in a file.
  std::vector<int64_t> FileShape() const;
  // The place of a matrix's row among the rows in a file.
  int64_t FileRow(int64_t row) const;
  // Converts one expert, [columns, rows] in a file, [rows, columns] in memory.
  void ToFile(std::span<const float> matrix, std::span<float> file) const;
  void FromFile(std::span<const float> file, std::span<float> matrix) const;

  friend bool operator==(const StackedExperts&,
                         const StackedExperts&) = default;
};

// MXFP4 (Open Compute Project, Microscaling Formats 1.0, sections 5.3.3 and
// 5.4.1): groups of 32 numbers of four bits and a power of two.
inline constexpr int64_t kMxfp4Group = 32;

// Sets the numbers of some groups from their bytes, two numbers in each, the
// first in the lower four bits, and from the exponent of each group plus 127.
// An exponent of 255 is NaN.
void DecodeMxfp4(std::span<const std::byte> blocks,
                 std::span<const std::byte> scales, std::span<float> numbers);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_STACKED_EXPERTS_H_
