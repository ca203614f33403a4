// Reads the files that describe a machine, /proc and /sys, below one root.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckv::ctl::doctor {

// The most bytes read of a file. The longest file needed is the list of a machine's sockets.
inline constexpr size_t kHostFileBytesMax = 4u << 20;

// Used by one thread.
class HostFiles {
 public:
  // `root` is "" for this machine, or a folder with the same file tree.
  explicit HostFiles(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  // Returns the text without trailing blanks and newlines, or nothing if the file cannot be read.
  std::optional<std::string> Read(std::string_view path) const;
  // Returns the number after `key` in a file of lines like "MemTotal:   16 kB", or nothing.
  std::optional<uint64_t> ReadField(std::string_view path, std::string_view key) const;
  // Returns the rest of the line that begins with `key`, without surrounding blanks, or nothing.
  std::optional<std::string> ReadLine(std::string_view path, std::string_view key) const;
  // Returns the names in a folder, in order; empty if the folder cannot be read.
  std::vector<std::string> List(std::string_view path) const;
  // Returns the target of a symbolic link, or nothing.
  std::optional<std::string> Link(std::string_view path) const;

 private:
  std::string root_;
};

// Returns the decimal number at the start of `text`, or nothing.
std::optional<uint64_t> LeadingNumber(std::string_view text);
// Returns the numbers of a list like "0-3,8", at most 4096 of them.
std::vector<uint32_t> ListedNumbers(std::string_view text);

}  // namespace ckv::ctl::doctor
