// The table of ckvd's options: every fact about an option, once.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckv {

enum class OptionKind {
  kText,
  kChoice,
  kName,           // a valid name of a corpus or member
  kAddress,        // host:port, port 0 takes a free one
  kPeerAddress,    // host:port of somebody else, so never port 0
  kPeerAddresses,  // one of these or several, comma separated, each once
  kCount,
  kBytes,     // "512MiB"; a bare number is bytes
  kDuration,  // "500ms"; a bare number is refused
  kList,      // comma separated choices, each once
};

struct OptionSpec {
  using Member = std::variant<std::string Config::*, uint32_t Config::*, uint64_t Config::*,
                              Duration Config::*, std::vector<std::string> Config::*>;

  std::string_view key;
  OptionKind kind;
  Member member;
  uint64_t min = 0;          // kCount, kBytes, and kDuration in milliseconds
  uint64_t max = 0;          // the same, and of kPeerAddresses their number
  std::string_view choices;  // choices of kChoice and kList, comma separated
  std::string_view unit;     // unit of a bare number, for --help
  std::string_view help;
  std::string_view former_key = {};  // an earlier name of the key, still taken with a warning
  bool live = false;                 // SIGHUP changes it; others need a restart
};

std::span<const OptionSpec> ConfigOptions();

// "store.capacity" -> "CKV_STORE_CAPACITY", "--store-capacity".
std::string OptionEnvironmentName(std::string_view key);
std::string OptionFlagName(std::string_view key);

// Parses `text` into the option's field.
//   InvalidArgument     says which values are allowed.
absl::Status AssignOption(const OptionSpec& option, std::string_view text, Config& config);
// Formats the field as text that AssignOption takes.
std::string FormatOption(const OptionSpec& option, const Config& config);

std::string ConfigHelp();

}  // namespace ckv
