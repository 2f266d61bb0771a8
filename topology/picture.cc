// The picture of a DeviceMesh.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "topology/device_mesh.h"

namespace tessera::topology {

std::string DeviceMesh::CellText(int64_t cell) const {
  return cell < device_count() ? absl::StrCat(devices_[cell].value()) : ".";
}

void DeviceMesh::AppendPlane(int64_t plane, int64_t most,
                             std::string* picture) const {
  const int64_t rows = std::min(shape_[1], most);
  const int64_t columns = std::min(shape_[2], most);
  // Wide enough for the longest text of the part that is shown.
  size_t width = 1;
  const auto text = [&](int64_t row, int64_t column) {
    return CellText((plane * shape_[1] + row) * shape_[2] + column);
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      width = std::max(width, text(row, column).size());
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const std::string cell = text(row, column);
      absl::StrAppend(picture, column == 0 ? "" : " ",
                      std::string(width - cell.size(), ' '), cell);
    }
    absl::StrAppend(picture, columns < shape_[2] ? " ...\n" : "\n");
  }
  if (rows < shape_[1]) absl::StrAppend(picture, "...\n");
}

std::string DeviceMesh::ToString(int64_t most) const {
  most = std::max<int64_t>(most, 1);
  std::string picture;
  const int64_t planes = std::min(shape_[0], most);
  for (int64_t plane = 0; plane < planes; ++plane) {
    if (axes_.size() == kMaxAxes) {
      absl::StrAppend(&picture, axes_[0].name, " ", plane, ":\n");
    }
    AppendPlane(plane, most, &picture);
  }
  if (planes < shape_[0]) absl::StrAppend(&picture, "...\n");
  return picture;
}

}  // namespace tessera::topology
