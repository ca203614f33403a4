// Reads limits from the files of control groups. ReadGroupLimits, in order: ReadTrees finds where
// groups are mounted; the process's file names its group in each tree; ClimbFrom visits the group
// and all above it, and the least limit counts. Version 2 has one tree, version 1 one for each
// controller. A file that cannot be read has no limit.

#include "proto/host/control_groups.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace ckv {
namespace {

// No machine nests groups this deep; a path that does is not followed further.
constexpr int kDepthMax = 64;
// Version 1 writes "no limit" as the largest number of pages, 2^63 less some.
constexpr uint64_t kMemoryMax = uint64_t{1} << 62;

// A tree of groups, as it is mounted.
struct Tree {
  std::string folder;       // the mount point, below the root
  std::string top;          // the group at the mount point
  std::string controllers;  // those of version 1, with commas between; empty for version 2
};

bool HasWord(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (list.substr(0, end) == word) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

std::optional<std::string> ReadWords(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> NumberOf(const std::optional<std::string>& text) {
  if (!text || text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return std::nullopt;
  return std::strtoull(text->c_str(), nullptr, 10);
}

// Lines of mountinfo: "31 23 0:27 TOP FOLDER rw,nosuid shared:9 - cgroup cgroup rw,memory".
std::vector<Tree> ReadTrees(const std::string& root, const std::string& process) {
  std::vector<Tree> trees;
  std::ifstream file(root + "/proc/" + process + "/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - cgroup");
    if (dash == std::string::npos) continue;
    std::istringstream words(line), rest(line.substr(dash + 3));
    std::string skipped, kind, source, options;
    Tree tree;
    words >> skipped >> skipped >> skipped >> tree.top >> tree.folder;
    rest >> kind >> source >> options;
    if (kind == "cgroup") tree.controllers = options;
    if (tree.top == "/") tree.top.clear();
    if (kind == "cgroup" || kind == "cgroup2") trees.push_back(tree);
  }
  if (!trees.empty()) return trees;
  // As systemd mounts them.
  trees.push_back({"/sys/fs/cgroup", "", ""});
  for (const char* name : {"memory", "pids", "cpu"})
    trees.push_back({std::string("/sys/fs/cgroup/") + name, "", name});
  return trees;
}

// Calls `look` with the folder of the group and of each above it, as far as they can be seen.
template <typename Look>
void ClimbFrom(const std::string& root, const Tree& tree, std::string group, const Look& look) {
  // Without a namespace of its own, a container sees its path in the whole machine.
  const bool is_below = group.starts_with(tree.top) &&
                        (group.size() == tree.top.size() || group[tree.top.size()] == '/');
  if (is_below) {
    group.erase(0, tree.top.size());
  } else {
    group.clear();
  }
  if (group.find("/..") != std::string::npos) group.clear();
  const std::string folder = root + tree.folder;
  for (int depth = 0; depth < kDepthMax; ++depth) {
    while (group.ends_with('/')) group.pop_back();
    look(folder + group);
    if (group.empty()) return;
    group.resize(std::min(group.rfind('/'), group.size()));
  }
}

void TakeLess(const std::string& root, const std::string& path, uint64_t none_from, uint64_t& least,
              std::string& file) {
  const std::optional<uint64_t> number = NumberOf(ReadWords(path));
  if (!number || *number >= none_from || *number >= least) return;
  least = *number;
  file = path.substr(root.size());
}

void TakeTime(std::optional<uint64_t> quota, std::optional<uint64_t> period, GroupLimits& limits) {
  if (!quota || !period || *period == 0) return;
  const double share = static_cast<double>(*quota) / static_cast<double>(*period);
  if (share > 0 && (limits.processors == 0 || share < limits.processors)) limits.processors = share;
}

void ReadSecond(const std::string& root, const Tree& tree, const std::string& group,
                GroupLimits& limits) {
  ClimbFrom(root, tree, group, [&](const std::string& folder) {
    TakeLess(root, folder + "/memory.max", kMemoryMax, limits.memory_bytes, limits.memory_file);
    TakeLess(root, folder + "/pids.max", kNoGroupLimit, limits.process_count, limits.process_file);
    const auto time = ReadWords(folder + "/cpu.max");  // "200000 100000", "max 100000"
    const size_t blank = time ? time->find(' ') : std::string::npos;
    if (blank != std::string::npos)
      TakeTime(NumberOf(time->substr(0, blank)), NumberOf(time->substr(blank + 1)), limits);
  });
}

void ReadFirst(const std::string& root, const Tree& tree, const std::string& group,
               GroupLimits& limits) {
  ClimbFrom(root, tree, group, [&](const std::string& folder) {
    if (HasWord(tree.controllers, "memory"))
      TakeLess(root, folder + "/memory.limit_in_bytes", kMemoryMax, limits.memory_bytes,
               limits.memory_file);
    if (HasWord(tree.controllers, "pids"))
      TakeLess(root, folder + "/pids.max", kNoGroupLimit, limits.process_count,
               limits.process_file);
    if (HasWord(tree.controllers, "cpu"))
      TakeTime(NumberOf(ReadWords(folder + "/cpu.cfs_quota_us")),
               NumberOf(ReadWords(folder + "/cpu.cfs_period_us")), limits);
  });
}

}  // namespace

GroupLimits ReadGroupLimits(const std::string& root, const std::string& process) {
  GroupLimits limits;
  const std::vector<Tree> trees = ReadTrees(root, process);
  std::ifstream file(root + "/proc/" + process + "/cgroup");
  // "0::/a/b" of version 2, "4:memory:/a/b" and "3:cpu,cpuacct:/a/b" of version 1.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    for (const Tree& tree : trees) {
      if (controllers.empty() && tree.controllers.empty()) ReadSecond(root, tree, group, limits);
      for (const char* one : {"memory", "pids", "cpu"}) {
        if (!HasWord(controllers, one) || !HasWord(tree.controllers, one)) continue;
        ReadFirst(root, tree, group, limits);
        break;
      }
    }
  }
  return limits;
}

uint64_t UsableMemoryBytes(std::string* file) {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  const uint64_t machine = pages <= 0 || page_bytes <= 0
                               ? 0
                               : static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
  const GroupLimits limits = ReadGroupLimits("", "self");
  file->clear();
  if (limits.memory_bytes == kNoGroupLimit || (machine != 0 && machine <= limits.memory_bytes))
    return machine;
  *file = limits.memory_file;
  return limits.memory_bytes;
}

uint32_t UsableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  uint32_t count = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    count = std::max(1u, static_cast<uint32_t>(CPU_COUNT(&set)));
  const double time = ReadGroupLimits("", "self").processors;
  if (time <= 0 || time >= count) return count;
  return std::max(1u, static_cast<uint32_t>(std::ceil(time)));
}

}  // namespace ckv
