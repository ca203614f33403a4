// Reads the nodes of a profile in YAML or JSON. Every error names the file, the line and the key.

#pragma once

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv::ctl {

inline constexpr size_t kPlanFileBytesMax = size_t{1} << 20;

// Reads a file of at most `bytes_max` bytes.
//   NotFound            there is no file of that name.
//   InvalidArgument     it cannot be read, or is larger.
absl::StatusOr<std::string> ReadPlanFile(const std::string& path, size_t bytes_max);

// A value type. All of its errors are InvalidArgument: "FILE:LINE: KEY: what is wrong". `key` is
// the path to `map`, "" for the whole document.
class ProfileNodes {
 public:
  using Keys = std::initializer_list<const char*>;

  explicit ProfileNodes(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }

  // Returns key.name, or name for the whole document.
  static std::string Under(const std::string& key, const std::string& name);

  absl::Status Refuse(const YAML::Node& node, const std::string& key, std::string_view why) const;
  // Refuses what is no map, and keys that are not known: a mistyped one would be ignored otherwise.
  absl::Status CheckKeys(const YAML::Node& map, const std::string& key, Keys known) const;
  // Sets `found` to the node of a key, which must be there.
  absl::Status Find(const YAML::Node& map, const std::string& key, const char* name,
                    YAML::Node& found) const;
  // Reads what must be there.
  absl::Status Number(const YAML::Node& map, const std::string& key, const char* name,
                      double& value) const;
  // The same within limits, which it includes.
  absl::Status Number(const YAML::Node& map, const std::string& key, const char* name, double from,
                      double to, double& value) const;
  absl::Status Count(const YAML::Node& map, const std::string& key, const char* name, uint32_t from,
                     uint32_t to, uint32_t& value) const;
  absl::Status Text(const YAML::Node& map, const std::string& key, const char* name,
                    std::string& value) const;

  // Adds the line of the item to an error that begins with its index: "[2].tokens: ...".
  absl::Status AtItem(const YAML::Node& list, const std::string& key,
                      const absl::Status& error) const;

 private:
  std::string path_;
};

// Parses `text` and gives its root to `read`. Turns errors of YAML into "FILE:LINE: ...".
absl::Status ReadYaml(const std::string& path, const std::string& text,
                      const std::function<absl::Status(const YAML::Node& root)>& read);

}  // namespace ckv::ctl
