#include "topology/device_mesh.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "topology/groups.h"

namespace tessera::topology {
namespace {

using GridAxis = DeviceMesh::GridAxis;
using Lists = std::vector<std::vector<DeviceId>>;

void CheckAxes(std::span<const GridAxis> axes,
               std::vector<std::string>* problems) {
  if (axes.empty() || axes.size() > DeviceMesh::kMaxAxes) {
    problems->push_back(
        absl::StrCat(axes.size(), " axes are given; choose 1, 2 or 3"));
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const std::string& name = axes[i].name;
    const int64_t size = axes[i].size;
    if (name.empty()) {
      problems->push_back(absl::StrCat("axis ", i, " has no name"));
    }
    const auto same = [&](const GridAxis& axis) { return axis.name == name; };
    if (std::any_of(axes.begin(), axes.begin() + i, same)) {
      problems->push_back(absl::StrCat("the axis name ", Quoted(name),
                                       " is repeated; give each axis its own"));
    }
    if (size < 1) {
      problems->push_back(absl::StrCat("axis ", Quoted(name), " has size ",
                                       size, "; sizes are 1 or more"));
    }
  }
}

// "2 x 3".
std::string SizesOf(std::span<const GridAxis> axes) {
  return absl::StrJoin(axes, " x ", [](std::string* out, const GridAxis& axis) {
    absl::StrAppend(out, axis.size);
  });
}

// The number of cells, or 0 after a problem. Sizes are at least 1.
int64_t CountCells(std::span<const GridAxis> axes,
                   std::vector<std::string>* problems) {
  int64_t cells = 1;
  for (const GridAxis& axis : axes) {
    if (axis.size > DeviceMesh::kMaxCells / cells) {
      problems->push_back(absl::StrCat("a grid of ", SizesOf(axes),
                                       " has more cells than the ",
                                       DeviceMesh::kMaxCells, " allowed"));
      return 0;
    }
    cells *= axis.size;
  }
  return cells;
}

void CheckCount(std::span<const GridAxis> axes, size_t devices, int64_t cells,
                std::vector<std::string>* problems) {
  if (devices == 0) {
    problems->push_back("no device is given; give at least one");
  }
  if (devices > static_cast<size_t>(cells)) {
    problems->push_back(absl::StrCat(
        devices, " devices do not fit into the ", cells, " cells of ",
        SizesOf(axes), "; give at most ", cells, " devices or a larger grid"));
  }
}

// "row=1, column=2".
std::string NameCell(std::span<const GridAxis> axes,
                     std::span<const int64_t> coordinates) {
  std::string text;
  for (size_t i = 0; i < axes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", axes[i].name, "=",
                    coordinates[i]);
  }
  return text;
}

// The groups along each set, all of one division and no axis in two sets.
absl::StatusOr<std::vector<Groups>> GroupsOf(
    const Mesh& mesh, std::span<const std::string_view> axis_sets) {
  std::vector<Groups> groups;
  std::vector<std::string> all;
  for (const std::string_view axis_set : axis_sets) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names,
                             ParseAxisNames(axis_set));
    for (std::string& name : names) all.push_back(std::move(name));
    TESSERA_ASSIGN_OR_RETURN(Groups along, mesh.GroupsAlong(axis_set));
    groups.push_back(std::move(along));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (all[i] != all[j]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("axis \"", all[i],
                       "\" is in two sets; name each axis in one of them"));
    }
  }
  TESSERA_RETURN_IF_ERROR(mesh.DivisionWith(all).status());
  return groups;
}

}  // namespace

absl::StatusOr<DeviceMesh> DeviceMesh::Create(
    std::vector<GridAxis> axes, std::span<const DeviceId> devices) {
  std::vector<std::string> problems;
  CheckAxes(axes, &problems);
  const int64_t cells = problems.empty() ? CountCells(axes, &problems) : 0;
  if (problems.empty()) CheckCount(axes, devices.size(), cells, &problems);

  DeviceMesh mesh;
  for (size_t i = 0; problems.empty() && i < devices.size(); ++i) {
    const DeviceId device = devices[i];
    if (device < DeviceId(0)) {
      problems.push_back(absl::StrCat("device ", i, " has the id ",
                                      device.value(), "; ids are 0 or more"));
    }
    const auto [it, added] = mesh.cell_of_.emplace(device, i);
    if (added) continue;
    problems.push_back(absl::StrCat("devices ", it->second, " and ", i,
                                    " have the same id ", device.value(),
                                    "; give each id once"));
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("device mesh: ", absl::StrJoin(problems, "; ")));
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    mesh.shape_[kMaxAxes - axes.size() + i] = axes[i].size;
  }
  mesh.axes_ = std::move(axes);
  mesh.devices_.assign(devices.begin(), devices.end());
  return mesh;
}

absl::StatusOr<DeviceMesh> DeviceMesh::Linear(
    std::span<const DeviceId> devices) {
  // One cell even without devices, so that the error reports the missing
  // devices.
  const auto size = std::max<int64_t>(static_cast<int64_t>(devices.size()), 1);
  return Create({{"column", size}}, devices);
}

absl::StatusOr<DeviceMesh> DeviceMesh::Parse(std::string_view text) {
  constexpr size_t kMostBytes = 1 << 16;
  std::vector<DeviceId> devices;
  for (const std::string_view number :
       absl::StrSplit(text.substr(0, kMostBytes), ',')) {
    int32_t id = 0;
    const bool is_number =
        number.find_first_not_of("0123456789") == number.npos &&
        absl::SimpleAtoi(number, &id);
    if (!is_number || text.size() > kMostBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("device mesh: ", Quoted(text),
                       " is not a list of device ids; give "
                       "numbers separated by commas, such as 0,2,3"));
    }
    devices.push_back(DeviceId(id));
  }
  return Linear(devices);
}

absl::StatusOr<DeviceMesh> DeviceMesh::Balanced(
    std::span<const DeviceId> devices) {
  const auto count = std::max<int64_t>(static_cast<int64_t>(devices.size()), 1);
  int64_t rows = 1;
  while (rows * rows < count) ++rows;
  return Grid(rows, (count + rows - 1) / rows, devices);
}

absl::StatusOr<DeviceMesh> DeviceMesh::Grid(int64_t rows, int64_t columns,
                                            std::span<const DeviceId> devices) {
  return Create({{"row", rows}, {"column", columns}}, devices);
}

absl::StatusOr<DeviceMesh> DeviceMesh::Grid(int64_t planes, int64_t rows,
                                            int64_t columns,
                                            std::span<const DeviceId> devices) {
  return Create({{"plane", planes}, {"row", rows}, {"column", columns}},
                devices);
}

absl::StatusOr<int64_t> DeviceMesh::CellAt(
    std::span<const int64_t> coordinates) const {
  if (coordinates.size() != axes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device mesh: ", coordinates.size(), " coordinates are given for ",
        axes_.size(), axes_.size() == 1 ? " axis" : " axes"));
  }
  int64_t cell = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    const auto& [name, size] = axes_[i];
    if (coordinates[i] < 0 || coordinates[i] >= size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device mesh: coordinate ", coordinates[i], " of axis ", Quoted(name),
          " is out of range; ",
          size == 1 ? "it must be 0"
                    : absl::StrCat("it must be from 0 to ", size - 1)));
    }
    cell = cell * size + coordinates[i];
  }
  return cell;
}

GridCoordinates DeviceMesh::CoordinatesOfCell(int64_t cell) const {
  GridCoordinates coordinates(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    coordinates[i] = cell % axes_[i].size;
    cell /= axes_[i].size;
  }
  return coordinates;
}

absl::StatusOr<DeviceId> DeviceMesh::At(
    std::span<const int64_t> coordinates) const {
  TESSERA_ASSIGN_OR_RETURN(const int64_t cell, CellAt(coordinates));
  if (cell >= device_count()) {
    return absl::NotFoundError(absl::StrCat(
        "device mesh: the cell ", NameCell(axes_, coordinates), " is empty; ",
        device_count(), " devices fill the first of ", cell_count(), " cells"));
  }
  return devices_[cell];
}

absl::StatusOr<DeviceId> DeviceMesh::At(
    std::initializer_list<int64_t> coordinates) const {
  return At(std::span(coordinates.begin(), coordinates.size()));
}

absl::StatusOr<GridCoordinates> DeviceMesh::CoordinatesOf(
    DeviceId device) const {
  const auto it = cell_of_.find(device);
  if (it == cell_of_.end()) {
    return absl::NotFoundError(
        absl::StrCat("device mesh: no device has the id ", device.value(),
                     "; devices() lists all ", device_count()));
  }
  return CoordinatesOfCell(it->second);
}

std::vector<GridCoordinates> DeviceMesh::EmptyCells() const {
  std::vector<GridCoordinates> cells;
  for (int64_t cell = device_count(); cell < cell_count(); ++cell) {
    cells.push_back(CoordinatesOfCell(cell));
  }
  return cells;
}

Lists DeviceMesh::LinesAlong(size_t dimension) const {
  int64_t stride = 1;
  for (size_t i = dimension + 1; i < kMaxAxes; ++i) stride *= shape_[i];
  const int64_t size = shape_[dimension];
  Lists lines(cell_count() / size);
  for (int64_t cell = 0; cell < device_count(); ++cell) {
    const int64_t outer = cell / (stride * size);
    lines[outer * stride + cell % stride].push_back(devices_[cell]);
  }
  return lines;
}

Lists DeviceMesh::Rows() const { return LinesAlong(2); }

Lists DeviceMesh::Columns() const { return LinesAlong(1); }

Lists DeviceMesh::Planes() const {
  Lists planes(shape_[0]);
  const int64_t size = shape_[1] * shape_[2];
  for (int64_t cell = 0; cell < device_count(); ++cell) {
    planes[cell / size].push_back(devices_[cell]);
  }
  return planes;
}

absl::StatusOr<DeviceMesh> DeviceMesh::FromMesh(
    const Mesh& mesh, std::span<const std::string_view> axis_sets,
    Rank member) {
  constexpr std::string_view kWhat = "device mesh of ranks";
  if (axis_sets.empty() || axis_sets.size() > kMaxAxes) {
    return absl::InvalidArgumentError(
        absl::StrCat(kWhat, ": ", axis_sets.size(),
                     " sets of axes are given; choose 1, 2 or 3"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Groups> groups,
                           GroupsOf(mesh, axis_sets), Annotate(_, kWhat));
  std::vector<GridAxis> axes;
  std::vector<Rank> ranks = {member};
  for (size_t i = 0; i < groups.size(); ++i) {
    axes.push_back({std::string(axis_sets[i]), groups[i].size()});
    if (groups[i].size() > kMaxCells / static_cast<int64_t>(ranks.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhat, ": more than the ", kMaxCells, " cells allowed"));
    }
    std::vector<Rank> spread;
    for (const Rank rank : ranks) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<Rank> line,
                               groups[i].MembersWith(rank), Annotate(_, kWhat));
      spread.insert(spread.end(), line.begin(), line.end());
    }
    ranks = std::move(spread);
  }
  std::vector<DeviceId> devices;
  devices.reserve(ranks.size());
  for (const Rank rank : ranks) devices.push_back(DeviceId(rank.value()));
  return Create(std::move(axes), devices);
}

std::string DeviceMesh::CellText(int64_t cell) const {
  return cell < device_count() ? absl::StrCat(devices_[cell].value()) : ".";
}

void DeviceMesh::AppendPlane(int64_t plane, int64_t most,
                             std::string* picture) const {
  const int64_t rows = std::min(shape_[1], most);
  const int64_t columns = std::min(shape_[2], most);
  // Wide enough for the longest text shown.
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
