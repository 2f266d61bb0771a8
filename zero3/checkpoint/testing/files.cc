#include "zero3/checkpoint/testing/files.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace tessera::zero3::testing {

namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

PowerLossCalls::PowerLossCalls(std::string root, int64_t last)
    : root_(std::move(root)), last_(last) {
  absl::MutexLock lock(&mutex_);
  Load(root_);
}

int PowerLossCalls::Load(const std::string& path) {
  const int id = static_cast<int>(nodes_.size());
  nodes_[id] = {};
  if (std::filesystem::is_directory(path)) {
    nodes_[id].is_directory = true;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const int child = Load(entry.path().string());
      nodes_[id].entries[entry.path().filename().string()] = child;
    }
    nodes_[id].synced_entries = nodes_[id].entries;
  } else {
    nodes_[id].data = nodes_[id].synced_data = ReadAll(path);
  }
  return id;
}

absl::Status PowerLossCalls::Count() {
  return ++calls_ < last_ ? absl::OkStatus()
                          : absl::AbortedError("the power is lost");
}

int64_t PowerLossCalls::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

PowerLossCalls::Entries& PowerLossCalls::EntriesAround(const std::string& path,
                                                       std::string& name) {
  const std::vector<std::string> steps =
      absl::StrSplit(path.substr(root_.size()), '/', absl::SkipEmpty());
  int node = 0;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    node = nodes_.at(node).entries.at(steps[i]);
  }
  name = steps.back();
  return nodes_.at(node).entries;
}

int PowerLossCalls::NodeAt(const std::string& path) {
  if (path == root_) return 0;
  std::string name;
  return EntriesAround(path, name).at(name);
}

absl::StatusOr<int> PowerLossCalls::Create(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  TESSERA_ASSIGN_OR_RETURN(const int fd, System().Create(path));
  const int id = static_cast<int>(nodes_.size());
  nodes_[id] = {};
  std::string name;
  EntriesAround(path, name)[name] = id;
  open_[fd] = id;
  return fd;
}

absl::Status PowerLossCalls::Write(int fd, std::span<const std::byte> bytes,
                                   int64_t offset, const std::string& path) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  TESSERA_RETURN_IF_ERROR(System().Write(fd, bytes, offset, path));
  nodes_[open_.at(fd)].data.append(reinterpret_cast<const char*>(bytes.data()),
                                   bytes.size());
  return absl::OkStatus();
}

// The real directory is not the modelled disk and needs no sync.
absl::Status PowerLossCalls::Sync(int fd, const std::string&) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  Node& node = nodes_[open_.at(fd)];
  node.synced_data = node.data;
  return absl::OkStatus();
}

absl::Status PowerLossCalls::Close(int fd, const std::string& path) {
  absl::MutexLock lock(&mutex_);
  open_.erase(fd);
  const absl::Status status = System().Close(fd, path);
  TESSERA_RETURN_IF_ERROR(Count());
  return status;
}

absl::Status PowerLossCalls::MakeDirectory(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  TESSERA_RETURN_IF_ERROR(System().MakeDirectory(path));
  const int id = static_cast<int>(nodes_.size());
  nodes_[id].is_directory = true;
  std::string name;
  EntriesAround(path, name)[name] = id;
  return absl::OkStatus();
}

absl::Status PowerLossCalls::SyncDirectory(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  Node& node = nodes_[NodeAt(path)];
  node.synced_entries = node.entries;
  return absl::OkStatus();
}

absl::Status PowerLossCalls::Rename(const std::string& from,
                                    const std::string& to) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  TESSERA_RETURN_IF_ERROR(System().Rename(from, to));
  std::string old_name, new_name;
  Entries& old_entries = EntriesAround(from, old_name);
  EntriesAround(to, new_name)[new_name] = old_entries.at(old_name);
  old_entries.erase(old_name);
  return absl::OkStatus();
}

absl::Status PowerLossCalls::Exchange(const std::string& a,
                                      const std::string& b) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  TESSERA_RETURN_IF_ERROR(System().Exchange(a, b));
  std::string name_a, name_b;
  std::swap(EntriesAround(a, name_a)[name_a], EntriesAround(b, name_b)[name_b]);
  return absl::OkStatus();
}

absl::Status PowerLossCalls::RemoveFile(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  TESSERA_RETURN_IF_ERROR(System().RemoveFile(path));
  std::string name;
  EntriesAround(path, name).erase(name);
  return absl::OkStatus();
}

absl::Status PowerLossCalls::RemoveDirectory(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Count());
  TESSERA_RETURN_IF_ERROR(System().RemoveDirectory(path));
  std::string name;
  EntriesAround(path, name).erase(name);
  return absl::OkStatus();
}

void PowerLossCalls::WriteDisk(Survival survival, uint64_t seed,
                               const std::string& to) const {
  absl::MutexLock lock(&mutex_);
  std::mt19937_64 random(seed);
  WriteNode(0, survival, random, to);
}

void PowerLossCalls::WriteNode(int node, Survival survival,
                               std::mt19937_64& random,
                               const std::string& to) const {
  const Node& from = nodes_.at(node);
  const auto lives = [&] {
    return survival == Survival::kAll ||
           (survival == Survival::kRandom && random() % 2 == 0);
  };
  if (!from.is_directory) {
    std::string data = lives() ? from.data : from.synced_data;
    // A random part of the appended but unsynced bytes survives.
    if (survival == Survival::kRandom && random() % 2 == 0) {
      const size_t more = from.data.size() - from.synced_data.size();
      data =
          from.data.substr(0, from.synced_data.size() + random() % (more + 1));
    }
    std::ofstream(to, std::ios::binary) << data;
    return;
  }
  std::filesystem::create_directory(to);
  std::set<std::string> names;
  for (const auto& [name, child] : from.entries) names.insert(name);
  for (const auto& [name, child] : from.synced_entries) names.insert(name);
  for (const std::string& name : names) {
    const Entries& entries = lives() ? from.entries : from.synced_entries;
    const auto found = entries.find(name);
    if (found == entries.end()) continue;
    WriteNode(found->second, survival, random, absl::StrCat(to, "/", name));
  }
}

}  // namespace tessera::zero3::testing
