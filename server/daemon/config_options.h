// The table of ckvd's options: everything that is known of one, once.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/config.h"

namespace ckv {

enum class OptionKind {
  kText,
  kChoice,
  kName,         // as a corpus or member is named
  kAddress,      // host:port, port 0 takes a free one
  kPeerAddress,  // host:port of somebody else, so never port 0
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
  uint64_t min = 0;  // of kCount, kBytes, and of kDuration in milliseconds
  uint64_t max = 0;
  std::string_view choices;  // of kChoice and kList, comma separated
  std::string_view unit;     // what a bare number counts, for --help
  std::string_view help;
};

std::span<const OptionSpec> ConfigOptions();

// "store.capacity" -> "CKV_STORE_CAPACITY", "--store-capacity".
std::string OptionEnvironmentName(std::string_view key);
std::string OptionFlagName(std::string_view key);

// Parses `text` into the option's field.
//   InvalidArgument     says what would be allowed.
absl::Status AssignOption(const OptionSpec& option, std::string_view text, Config& config);
// The field as text that AssignOption takes.
std::string FormatOption(const OptionSpec& option, const Config& config);

// The candidate with the fewest edits to `word`; empty if none is near.
std::string_view NearestWord(std::string_view word, std::span<const std::string> candidates);

std::string ConfigHelp();

}  // namespace ckv
