// DeviceMesh: device ids on a line, or on a grid of two or three axes.
//
//   TESSERA_ASSIGN_OR_RETURN(auto grid, DeviceMesh::Grid(2, 3, devices));
//   grid.At({1, 2});                  // The device in row 1, column 2.
//   grid.CoordinatesOf(DeviceId(7));  // Its row and column.
//   grid.Rows();                      // The devices of each row.
//   std::cout << grid.ToString();
//
// Cells are in row-major order: the last coordinate varies fastest. Devices
// fill them from the first on. If there are fewer devices than cells, the last
// cells are empty. Ids need not be consecutive. An immutable value; const
// methods may be called from any thread.
#ifndef TESSERA_TOPOLOGY_DEVICE_MESH_H_
#define TESSERA_TOPOLOGY_DEVICE_MESH_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "base/strong_int.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::topology {

// The number of a device, such as a GPU.
using DeviceId = StrongInt<struct DeviceIdTag>;

// One coordinate per axis.
using GridCoordinates = absl::InlinedVector<int64_t, 3>;

class DeviceMesh {
 public:
  static constexpr size_t kMaxAxes = 3;
  static constexpr int64_t kMaxCells = int64_t{1} << 24;

  struct GridAxis {
    std::string name;  // In messages and listings.
    int64_t size = 1;

    friend bool operator==(const GridAxis&, const GridAxis&) = default;
  };

  // A grid of 1 to 3 axes, the slowest-varying first. InvalidArgument, with all
  // problems at once: another number of axes; an axis with an empty or repeated
  // name or a size below 1; more than kMaxCells cells; no device, or more
  // devices than cells; a negative or repeated id.
  static absl::StatusOr<DeviceMesh> Create(std::vector<GridAxis> axes,
                                           std::span<const DeviceId> devices);

  // Create with axes named column; row and column; plane, row and column. A
  // line has as many cells as devices. A balanced plane has ceil(sqrt(n)) rows
  // for n devices, and as few columns as they need.
  static absl::StatusOr<DeviceMesh> Linear(std::span<const DeviceId> devices);
  static absl::StatusOr<DeviceMesh> Balanced(std::span<const DeviceId> devices);
  static absl::StatusOr<DeviceMesh> Grid(int64_t rows, int64_t columns,
                                         std::span<const DeviceId> devices);
  static absl::StatusOr<DeviceMesh> Grid(int64_t planes, int64_t rows,
                                         int64_t columns,
                                         std::span<const DeviceId> devices);

  // A line of the ids in `text`, such as "0,2,3". InvalidArgument as Create,
  // and if the text is not a list of numbers below 2^31.
  static absl::StatusOr<DeviceMesh> Parse(std::string_view text);

  // The ranks of `mesh` along 1 to 3 sets of axes, such as {"dp", "tp"} for
  // rows along dp and columns along tp, or {"pp", "dp,cp", "tp"}: the ranks
  // that agree with `member` in all other coordinates. Device ids are the
  // ranks; axes are named after the sets. InvalidArgument as Create and
  // Mesh::GroupsAlong, and if two sets share an axis or no division of the mesh
  // contains all of them.
  static absl::StatusOr<DeviceMesh> FromMesh(
      const Mesh& mesh, std::span<const std::string_view> axis_sets,
      Rank member);

  std::span<const GridAxis> axes() const { return axes_; }
  int64_t cell_count() const { return shape_[0] * shape_[1] * shape_[2]; }
  int64_t device_count() const { return static_cast<int64_t>(devices_.size()); }
  bool full() const { return device_count() == cell_count(); }

  // All devices, in the order of the cells.
  std::span<const DeviceId> devices() const { return devices_; }

  // The device at these coordinates, one per axis. InvalidArgument if one is
  // out of range (the message names axis, value and range) or there is not one
  // for each axis; NotFound, with the cell, if the cell is empty.
  absl::StatusOr<DeviceId> At(std::span<const int64_t> coordinates) const;
  absl::StatusOr<DeviceId> At(std::initializer_list<int64_t> coordinates) const;

  // NotFound if the grid does not contain the device.
  absl::StatusOr<GridCoordinates> CoordinatesOf(DeviceId device) const;
  bool Contains(DeviceId device) const { return cell_of_.contains(device); }

  // The coordinates of every empty cell, in row-major order.
  std::vector<GridCoordinates> EmptyCells() const;

  // The devices of each row, column and plane, without empty cells: one list
  // for each, in row-major order of the other coordinates. A grid with fewer
  // axes has one plane, or one row.
  std::vector<std::vector<DeviceId>> Rows() const;
  std::vector<std::vector<DeviceId>> Columns() const;
  std::vector<std::vector<DeviceId>> Planes() const;

  // A drawing with one line per row, "." for an empty cell, and the number of
  // each plane above it. Shows the first `most` entries along each axis, then
  // "...".
  //
  //   0 1 2
  //   3 4 .
  std::string ToString(int64_t most = 32) const;

 private:
  DeviceMesh() = default;

  absl::StatusOr<int64_t> CellAt(std::span<const int64_t> coordinates) const;
  GridCoordinates CoordinatesOfCell(int64_t cell) const;
  std::vector<std::vector<DeviceId>> LinesAlong(size_t dimension) const;
  std::string CellText(int64_t cell) const;
  void AppendPlane(int64_t plane, int64_t most, std::string* picture) const;

  std::vector<GridAxis> axes_;
  // Planes, rows, columns; 1 if there is no such axis.
  std::array<int64_t, kMaxAxes> shape_ = {1, 1, 1};
  std::vector<DeviceId> devices_;
  absl::flat_hash_map<DeviceId, int64_t> cell_of_;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DEVICE_MESH_H_
