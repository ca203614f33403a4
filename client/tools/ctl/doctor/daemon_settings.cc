// Reads the settings of a ckvd from the same sources as ckvd, without its code. In order:
//   ReadSettingsFile, AddVariables, AddFlags   fill a map by flag; a later source wins
//   SettingsOf                                 takes the values that doctor judges. If a value
//                                              cannot be parsed, the default stays
// It runs on the command's thread.

#include "client/tools/ctl/doctor/daemon_settings.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/grpc/default_addresses.h"
#include "proto/base/byte_size.h"
#include "proto/base/status.h"

namespace ckv::ctl::doctor {
namespace {

// The limits of ckvd's own reader.
constexpr size_t kFileBytesMax = 1u << 20;
constexpr size_t kDepthMax = 4;

// "store.capacity", "STORE_CAPACITY" and "store-capacity" are the same key.
std::string FlagOf(std::string_view key) {
  std::string flag;
  for (const char c : key) {
    flag += c == '.' || c == '_'   ? '-'
            : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a')
                                   : c;
  }
  return flag;
}

void Walk(const YAML::Node& node, const std::string& prefix, size_t depth, SettingValues& values) {
  if (depth > kDepthMax) return;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) continue;
    const std::string key =
        prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
    if (entry.second.IsMap()) {
      Walk(entry.second, key, depth + 1, values);
    } else if (entry.second.IsScalar()) {
      values[FlagOf(key)] = entry.second.Scalar();
    } else if (entry.second.IsSequence()) {
      std::string list;
      for (const YAML::Node& item : entry.second) {
        if (item.IsScalar()) list += (list.empty() ? "" : ",") + item.Scalar();
      }
      values[FlagOf(key)] = list;
    }
  }
}

struct Reader {
  const SettingValues& values;

  const std::string* Find(const char* flag) const {
    const auto found = values.find(flag);
    return found == values.end() ? nullptr : &found->second;
  }
  void Take(const char* flag, std::string& field) const {
    if (const std::string* text = Find(flag)) field = *text;
  }
  void Take(const char* flag, std::vector<std::string>& field) const {
    const std::string* text = Find(flag);
    if (text == nullptr) return;
    field.clear();
    for (const auto& word : absl::StrSplit(*text, absl::ByAnyChar(", "), absl::SkipEmpty()))
      field.emplace_back(word);
  }
  void Take(const char* flag, uint32_t& field) const {
    const std::string* text = Find(flag);
    uint32_t number = 0;
    if (text == nullptr) return;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error == std::errc() && end == text->data() + text->size()) field = number;
  }
  void TakeBytes(const char* flag, uint64_t& field) const {
    const std::string* text = Find(flag);
    if (text == nullptr) return;
    const absl::StatusOr<uint64_t> bytes = ParseByteSize(*text);
    if (bytes.ok()) field = *bytes;
  }
};

// Derives the address from the roles, as FillConfig of ckvd does.
void Fill(DaemonSettings& s) {
  if (!s.listen.empty() || s.roles.empty()) return;
  s.listen = s.MayHave("requester")   ? kDefaultRequesterAddress
             : s.MayHave("directory") ? kDefaultDirectoryAddress
                                      : kDefaultHolderAddress;
}

}  // namespace

absl::StatusOr<SettingValues> ReadSettingsFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    const std::string why = absl::StrFormat("%s: %s", path, std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(why) : absl::InvalidArgumentError(why);
  }
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: cannot be read, or has more than %d bytes", path, kFileBytesMax));
  }
  SettingValues values;
  // yaml-cpp reports by exceptions; none passes this function.
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsMap()) Walk(root, "", 0, values);
    if (!root.IsMap() && !root.IsNull())
      return absl::InvalidArgumentError(path + ":1: a map of keys is expected");
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: %s", path, error.mark.line + 1, error.msg));
  }
  return values;
}

void AddFlags(const std::vector<std::string>& arguments, SettingValues& values) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with("--")) continue;
    const size_t equals = word.find('=');
    if (equals != std::string::npos) {
      values[FlagOf(word.substr(2, equals - 2))] = word.substr(equals + 1);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      values[FlagOf(word.substr(2))] = arguments[++i];
    }
  }
}

void AddVariables(const std::vector<std::string>& variables, SettingValues& values) {
  for (const std::string& variable : variables) {
    const size_t equals = variable.find('=');
    if (!variable.starts_with("CKV_") || equals == std::string::npos) continue;
    values[FlagOf(variable.substr(4, equals - 4))] = variable.substr(equals + 1);
  }
}

bool DaemonSettings::MayHave(std::string_view role) const {
  return roles.empty() || std::find(roles.begin(), roles.end(), role) != roles.end();
}

uint64_t DaemonSettings::MemoryBytes() const {
  if (MayHave("holder")) {
    // 0 means a sixteenth (server/daemon/config_options.cc). Its requester's local row cache is in
    // the store.
    const uint64_t map = store_map_bytes_max == 0 ? store_capacity_bytes / 16 : store_map_bytes_max;
    return store_capacity_bytes + store_capacity_bytes / 100 * store_stripe_percent + map;
  }
  return MayHave("requester") ? requester_local_cache_bytes : 0;
}

uint32_t DaemonSettings::SpinningThreads() const {
  if (spin_us == 0) return 0;
  // A holder's dispatcher is one of its compute threads; a requester's streams have one loop.
  return (MayHave("holder") ? compute_threads : 0) +
         (MayHave("requester") && !roles.empty() ? 1 : 0);
}

DaemonSettings SettingsOf(const SettingValues& values, std::string origin) {
  DaemonSettings s;
  s.origin = std::move(origin);
  const Reader reader{values};
  reader.Take("role", s.roles);
  reader.Take("name", s.name);
  reader.Take("listen", s.listen);
  reader.Take("directory-path", s.directory_path);
  reader.Take("store-path", s.store_path);
  reader.Take("store-stripe-percent", s.store_stripe_percent);
  reader.Take("compute-threads", s.compute_threads);
  reader.Take("spin-us", s.spin_us);
  reader.TakeBytes("store-capacity", s.store_capacity_bytes);
  reader.TakeBytes("store-map-bytes-max", s.store_map_bytes_max);
  reader.TakeBytes("requester-local-cache-bytes", s.requester_local_cache_bytes);
  Fill(s);
  return s;
}

}  // namespace ckv::ctl::doctor
