// The files in which a machine tells of itself, /proc and /sys, below one root.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckv::ctl::doctor {

// More of a file than this is not read; the longest that is needed lists the sockets of a machine.
inline constexpr size_t kHostFileBytesMax = 4u << 20;

// Used by one thread.
class HostFiles {
 public:
  // `root` is "" for this machine, or a folder with a tree like its own.
  explicit HostFiles(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  // Returns the text without the blanks and line ends at its end, or nothing if it cannot be read.
  std::optional<std::string> Read(std::string_view path) const;
  // Returns the number that the file is, decimal, or nothing.
  std::optional<uint64_t> ReadNumber(std::string_view path) const;
  // Returns the number after `key` in a file of lines like "MemTotal:   16 kB", or nothing.
  std::optional<uint64_t> ReadField(std::string_view path, std::string_view key) const;
  // Returns the rest of the line that begins with `key`, without blanks around it, or nothing.
  std::optional<std::string> ReadLine(std::string_view path, std::string_view key) const;
  // Returns the names in a folder, in order; none if it cannot be read.
  std::vector<std::string> List(std::string_view path) const;
  // Returns what a symbolic link says, or nothing.
  std::optional<std::string> Link(std::string_view path) const;

 private:
  std::string root_;
};

// Returns the number that `text` begins with, decimal, or nothing.
std::optional<uint64_t> LeadingNumber(std::string_view text);
// Returns the numbers of a list like "0-3,8": at most 4096.
std::vector<uint32_t> ListedNumbers(std::string_view text);

}  // namespace ckv::ctl::doctor
