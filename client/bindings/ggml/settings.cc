// Reads the settings from environment variables. ReadSettings, in order: refuses unknown names with
// the prefix CKV_GGML_, and names the nearest known one; reads each variable with its own parser;
// keeps the first error. The Take functions return what is expected if a value is wrong.

#include "client/bindings/ggml/settings.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/grpc/default_addresses.h"
#include "proto/base/byte_size.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "proto/base/time_span.h"
#include "proto/base/words.h"
#include "proto/corpus.h"

namespace ckv::ggml {
namespace {

constexpr std::string_view kPrefix = "CKV_GGML_";
const char* const kNames[] = {"CKV_GGML_FABRICS",       "CKV_GGML_VERBS_DEVICE",
                              "CKV_GGML_KERNEL_TARGET", "CKV_GGML_CORPUS",
                              "CKV_GGML_POSITION",      "CKV_GGML_TENANT",
                              "CKV_GGML_POLICY",        "CKV_GGML_LOCAL_CACHE_BYTES",
                              "CKV_GGML_TIMEOUT",       "CKV_GGML_WIRE"};

absl::Status Wrong(std::string_view name, std::string_view value, std::string_view due) {
  return absl::InvalidArgumentError(absl::StrFormat("%s is '%s', must be %s", name, value, due));
}

absl::Status CheckNames(std::span<const std::string> names) {
  const std::vector<std::string> known(std::begin(kNames), std::end(kNames));
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix) || std::count(known.begin(), known.end(), name) > 0) continue;
    const std::string_view nearest = NearestWord(name, known);
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: unknown variable%s", name,
                        nearest.empty() ? "" : absl::StrFormat("; did you mean %s?", nearest)));
  }
  return absl::OkStatus();
}

// Takes values one after another, and keeps the first error.
class Reader {
 public:
  explicit Reader(const std::function<std::optional<std::string>(const std::string&)>& value_of)
      : value_of_(value_of) {}

  // Calls `take` with the value, if it is set. It returns what is due instead, or nothing.
  template <typename Take>
  void Read(const char* name, Take take) {
    const std::optional<std::string> value = value_of_(name);
    if (!value || value->empty() || !status_.ok()) return;
    if (const std::string due = take(*value); !due.empty()) status_ = Wrong(name, *value, due);
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::function<std::optional<std::string>(const std::string&)>& value_of_;
  absl::Status status_;
};

std::string TakeName(const std::string& value, std::string& to) {
  if (!ValidateName("name", value).ok()) return "a name: letters, digits, '-', '_' and '.'";
  to = value;
  return "";
}

std::string TakePosition(const std::string& value, std::optional<int64_t>& to) {
  int64_t position = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), position);
  if (error != std::errc() || end != value.data() + value.size() || position < 0 ||
      position > static_cast<int64_t>(kPositionMax)) {
    return absl::StrFormat("0 to %d", kPositionMax);
  }
  to = position;
  return "";
}

std::string TakeFabrics(const std::string& value, std::vector<FabricKind>& to) {
  to.clear();
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(value, ','))) {
    const auto kind = ParseFabricName(name);
    if (!kind.ok() || *kind == FabricKind::kLoopback) return "a list of shm, tcp and verbs";
    to.push_back(*kind);
  }
  return "";
}

std::string TakePolicy(const std::string& value, ContextPolicy& to) {
  if (value == "auto") {
    to = ContextPolicy::kAuto;
  } else if (value == "route") {
    to = ContextPolicy::kRoute;
  } else if (value == "cache") {
    to = ContextPolicy::kCache;
  } else {
    return "auto, route or cache";
  }
  return "";
}

}  // namespace

absl::StatusOr<Settings> ReadSettings(
    const std::function<std::optional<std::string>(const std::string&)>& value_of,
    std::span<const std::string> names) {
  CKV_RETURN_IF_ERROR(CheckNames(names));
  Settings settings;
  settings.directory = kDefaultDirectoryAddress;
  Reader reader(value_of);
  reader.Read("CKV_DIRECTORY", [&](const std::string& value) -> std::string {
    if (!ParsePeerAddresses(value, kDirectoryCountMax).ok())
      return "the directory's host:port, or those of several: host:port,host:port";
    settings.directory = value;
    return "";
  });
  reader.Read("CKV_GGML_CORPUS",
              [&](const std::string& value) { return TakeName(value, settings.corpus); });
  reader.Read("CKV_GGML_POSITION",
              [&](const std::string& value) { return TakePosition(value, settings.position); });
  reader.Read("CKV_GGML_TENANT",
              [&](const std::string& value) { return TakeName(value, settings.tenant); });
  reader.Read("CKV_GGML_POLICY",
              [&](const std::string& value) { return TakePolicy(value, settings.policy); });
  reader.Read("CKV_GGML_LOCAL_CACHE_BYTES", [&](const std::string& value) -> std::string {
    const auto bytes = ParseByteSize(value);
    if (!bytes.ok()) return "a size, like 4GiB";
    settings.local_cache_bytes = *bytes;
    return "";
  });
  reader.Read("CKV_GGML_TIMEOUT", [&](const std::string& value) -> std::string {
    const auto timeout = ParseTimeSpan(value);
    if (!timeout.ok() || *timeout <= Duration::zero()) return "a time, like 10s or 500ms";
    settings.timeout = *timeout;
    return "";
  });
  reader.Read("CKV_GGML_WIRE", [&](const std::string& value) -> std::string {
    if (value != "f32" && value != "bf16") return "f32 or bf16";
    settings.wire = value == "f32" ? PartialDtype::kF32 : PartialDtype::kBf16;
    return "";
  });
  reader.Read("CKV_GGML_FABRICS",
              [&](const std::string& value) { return TakeFabrics(value, settings.fabrics); });
  reader.Read("CKV_GGML_VERBS_DEVICE",
              [&](const std::string& value) { return TakeName(value, settings.verbs_device); });
  reader.Read("CKV_GGML_KERNEL_TARGET",
              [&](const std::string& value) { return TakeName(value, settings.kernel_target); });
  CKV_RETURN_IF_ERROR(reader.status());
  if (settings.position && settings.corpus.empty()) {
    return absl::InvalidArgumentError(
        "CKV_GGML_POSITION is set, and CKV_GGML_CORPUS is not\n"
        "  a reference has its own position (ckvctl attach --position)");
  }
  return settings;
}

absl::StatusOr<Settings> ReadSettings() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return ReadSettings(
      [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
      },
      names);
}

}  // namespace ckv::ggml
