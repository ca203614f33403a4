// Reads a configuration. ReadConfig, in order: the flags (ReadFlags), the YAML file (ReadYaml), and
// the environment give texts by key; Apply parses each text and assigns it, those of the file first
// and of the flags last; FillConfig sets defaults that depend on others; CheckWhole checks options
// together. All errors are collected, not only the first. ConfigToYaml writes the result.

#include "server/daemon/config.h"

#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <exception>

#include "absl/strings/str_format.h"
#include "attention/target/kernel_choice.h"
#include "client/grpc/default_addresses.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "proto/base/version.h"
#include "proto/base/words.h"
#include "proto/host/control_groups.h"
#include "server/daemon/address_checks.h"
#include "server/daemon/config_options.h"
#include "server/daemon/store_checks.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {
namespace {

// A config is a page of text: what is larger is another file.
constexpr uint64_t kConfigFileBytesMax = 1u << 20;
constexpr size_t kConfigDepthMax = 4;

// One value that a source gives.
struct Setting {
  std::string value;
  std::string source;  // "ckvd.yaml:12: store.capacity", "CKV_STORE_CAPACITY", "--store-capacity"
};
using Settings = std::map<std::string, Setting>;  // by key

const OptionSpec* FindOption(std::string_view key) {
  for (const OptionSpec& option : ConfigOptions()) {
    if (option.key == key) return &option;
  }
  return nullptr;
}

std::string Suggest(std::string_view word, std::span<const std::string> candidates) {
  const std::string_view nearest = NearestWord(word, candidates);
  if (nearest.empty()) return "; --help lists what there is";
  return absl::StrFormat("; did you mean %s?", nearest);
}

std::vector<std::string> KnownKeys() {
  std::vector<std::string> keys;
  for (const OptionSpec& option : ConfigOptions()) keys.emplace_back(option.key);
  return keys;
}

// The keys of a section, "store.path, store.capacity"; empty if there is no section of that name.
std::string KeysOf(const std::string& section) {
  std::string keys;
  for (const OptionSpec& option : ConfigOptions()) {
    if (!option.key.starts_with(section + ".")) continue;
    keys += absl::StrFormat("%s%s", keys.empty() ? "" : ", ", option.key);
  }
  return keys;
}

bool IsFormerKey(std::string_view key) {
  const auto options = ConfigOptions();
  return !key.empty() &&
         std::any_of(options.begin(), options.end(),
                     [key](const OptionSpec& option) { return option.former_key == key; });
}

class YamlReader {
 public:
  YamlReader(std::string path, Settings& settings, std::vector<std::string>& errors)
      : path_(std::move(path)), settings_(settings), errors_(errors) {}

  void Walk(const YAML::Node& node, const std::string& prefix, size_t depth) {
    if (depth > kConfigDepthMax) return Fail(node, prefix, "nested too deeply");
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        Fail(entry.first, prefix, "a key must be a word");
        continue;
      }
      const std::string key =
          prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
      // `directory` is both a value and a section.
      if (entry.second.IsMap() && (FindOption(key) == nullptr || !KeysOf(key).empty())) {
        Walk(entry.second, key, depth + 1);
      } else {
        Take(entry.first, key, entry.second);
      }
    }
  }

 private:
  void Take(const YAML::Node& where, const std::string& key, const YAML::Node& value) {
    if (FindOption(key) == nullptr && !IsFormerKey(key)) {
      const std::string keys = KeysOf(key);
      if (!keys.empty()) return Fail(where, key, "a section, not a value; it has " + keys);
      return Fail(where, key, "unknown key" + Suggest(key, KnownKeys()));
    }
    std::string text;
    if (value.IsSequence()) {
      for (const YAML::Node& item : value) {
        if (!item.IsScalar()) return Fail(item, key, "a list of words is expected");
        text += (text.empty() ? "" : ",") + item.Scalar();
      }
    } else if (value.IsScalar()) {
      text = value.Scalar();
    } else {
      return Fail(where, key, value.IsNull() ? "no value" : "a value is expected");
    }
    Setting setting = {text, Place(where, key)};
    if (!settings_.try_emplace(key, setting).second) Fail(where, key, "given twice");
  }

  std::string Place(const YAML::Node& node, const std::string& key) const {
    return absl::StrFormat("%s:%d: %s", path_, node.Mark().line + 1, key);
  }
  void Fail(const YAML::Node& node, const std::string& key, const std::string& what) {
    errors_.push_back(absl::StrFormat("%s: %s", Place(node, key), what));
  }

  const std::string path_;
  Settings& settings_;
  std::vector<std::string>& errors_;
};

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
  }
  std::string text(kConfigFileBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be read", path));
  if (text.size() > kConfigFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: larger than %d bytes", path, kConfigFileBytesMax));
  }
  return text;
}

void ReadYaml(const std::string& path, Settings& settings, std::vector<std::string>& errors) {
  const absl::StatusOr<std::string> text = ReadText(path);
  if (!text.ok()) {
    errors.emplace_back(text.status().message());
    return;
  }
  // yaml-cpp reports by exceptions; none passes this function.
  try {
    const YAML::Node root = YAML::Load(*text);
    if (root.IsNull()) return;
    if (!root.IsMap()) {
      errors.push_back(absl::StrFormat("%s:1: a map of keys is expected", path));
      return;
    }
    YamlReader(path, settings, errors).Walk(root, "", 0);
  } catch (const YAML::Exception& error) {
    errors.push_back(absl::StrFormat("%s:%d: %s", path, error.mark.line + 1, error.msg));
  }
}

struct Flags {
  Settings settings;
  std::string config_path;
  bool help = false;
  bool version = false;
  bool check = false;
};

// '--store.capacity' and '--store_capacity' are '--store-capacity'.
std::string NormaliseFlag(const std::string& argument) {
  if (!argument.starts_with("--")) return argument;
  std::string flag = argument;
  const size_t end = std::min(flag.find('='), flag.size());
  for (size_t i = 2; i < end; ++i) {
    if (flag[i] == '_' || flag[i] == '.') flag[i] = '-';
  }
  return flag;
}

void ReportExtras(const std::vector<std::string>& extras, std::vector<std::string>& errors) {
  std::vector<std::string> known = {"--config", "--check-config", "--version", "--help"};
  for (const OptionSpec& option : ConfigOptions()) known.push_back(OptionFlagName(option.key));
  bool after_flag = false;  // a word after an unknown flag is its value, not another mistake
  for (const std::string& extra : extras) {
    if (extra.starts_with("-")) {
      const std::string flag = extra.substr(0, extra.find('='));
      errors.push_back(absl::StrFormat("%s: unknown flag%s", flag, Suggest(flag, known)));
      after_flag = flag.size() == extra.size();
      continue;
    }
    if (!after_flag) {
      errors.push_back(absl::StrFormat("'%s': ckvd takes flags only; see --help", extra));
    }
    after_flag = false;
  }
}

void ReadFlags(std::span<const std::string> arguments, Flags& flags,
               std::vector<std::string>& errors) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("--help,-h", flags.help);
  app.add_flag("--version", flags.version);
  app.add_flag("--check-config", flags.check);
  app.add_option("--config", flags.config_path);
  std::map<std::string, std::string> values;
  const auto each_key = [](const auto& take) {
    for (const OptionSpec& option : ConfigOptions()) {
      take(option.key);
      if (!option.former_key.empty()) take(option.former_key);
    }
  };
  each_key(
      [&](std::string_view key) { app.add_option(OptionFlagName(key), values[std::string(key)]); });
  // CLI11 wants them last first. It reports by exceptions; none passes this function.
  std::vector<std::string> reversed;
  for (const std::string& argument : arguments) {
    reversed.push_back(NormaliseFlag(argument));
    if (!reversed.back().starts_with("--") || !reversed.back().ends_with("=")) continue;
    // An empty value. CLI11 would take the next argument for it.
    reversed.back().pop_back();
    reversed.emplace_back();
  }
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    errors.emplace_back(error.what());
    return;
  }
  each_key([&](std::string_view key) {
    const std::string flag = OptionFlagName(key);
    if (app.count(flag) > 0) flags.settings[std::string(key)] = {values[std::string(key)], flag};
  });
  ReportExtras(app.remaining(), errors);
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "ckvd";
  return name.data();
}

std::string_view DefaultListen(const Config& config) {
  if (config.HasRole("requester")) return kDefaultRequesterAddress;
  return config.HasRole("directory") ? kDefaultDirectoryAddress : kDefaultHolderAddress;
}

// Checks what no option alone can say.
void CheckWhole(const Config& config, std::vector<std::string>& errors) {
  if (config.role.empty()) {
    errors.emplace_back("role: choose what this process is: --role directory, holder or requester");
    return;
  }
  if (config.directory.empty() && !config.HasRole("directory")) {
    errors.emplace_back("directory: a holder or requester needs --directory host:port");
  }
  CheckDirectoryStore(config, errors);
  if (config.store_shadow_percent > 0 && config.store_path.empty()) {
    errors.emplace_back("store.shadow_percent: shadows are of chunks on disk: name a store.path");
  }
  const bool only_loopback = config.fabrics == std::vector<std::string>{"loopback"};
  if (only_loopback && config.HasRole("holder") != config.HasRole("requester")) {
    errors.push_back(absl::StrFormat(
        "fabrics: loopback does not leave this process, which has no %s: add shm or tcp",
        config.HasRole("holder") ? "requester" : "holder"));
  }
  if (config.fabric != "auto" && std::find(config.fabrics.begin(), config.fabrics.end(),
                                           config.fabric) == config.fabrics.end()) {
    errors.push_back(absl::StrFormat("fabric: %s is not among fabrics: add it there, or take auto",
                                     config.fabric));
  }
  if (config.kernel_target != kKernelTargetAuto) {
    const absl::Status known = CheckKernelTarget(config.kernel_target);
    if (!known.ok()) {
      errors.push_back(absl::StrFormat("kernel_target: %s; or take %s",
                                       std::string(known.message()), kKernelTargetAuto));
    }
  }
  if (!config.oracle_file.empty() && !config.oracle_address.empty()) {
    errors.emplace_back("oracle.file: there is an oracle.address too: name one of them");
  }
  if (const absl::Status shape = ValidateLaneShape(LaneShapeOf(config)); !shape.ok()) {
    errors.push_back(absl::StrFormat("lane: %s", std::string(shape.message())));
  }
  if (!IsVerbsMtu(config.verbs_mtu)) {
    errors.push_back(absl::StrFormat("verbs.mtu: %d is none of 256, 512, 1024, 2048, 4096 and 0",
                                     config.verbs_mtu));
  }
  CheckAddresses(config, errors);
}

// Variables of ckvctl, of the scripts and of the tests.
constexpr std::string_view kOthersVariables[] = {"CKV_REQUESTER", "CKV_BENCH_FOLDER",
                                                 "CKV_TEST_VERBS", "CKV_TEST_SANITIZED"};

// Moves values of former keys to the keys of today, which win if both are given.
void TakeFormerKeys(Settings& settings, std::vector<std::string>& warnings) {
  for (const OptionSpec& option : ConfigOptions()) {
    const auto found = settings.find(std::string(option.former_key));
    if (option.former_key.empty() || found == settings.end()) continue;
    warnings.push_back(absl::StrFormat("%s: %s is the name now", found->second.source, option.key));
    settings.try_emplace(std::string(option.key), found->second);
  }
}

void WarnOfVariables(std::span<const std::string> names, std::vector<std::string>& warnings) {
  std::vector<std::string> known = {"CKV_CONFIG"};
  for (const OptionSpec& option : ConfigOptions()) {
    known.push_back(OptionEnvironmentName(option.key));
    if (!option.former_key.empty()) known.push_back(OptionEnvironmentName(option.former_key));
  }
  for (const std::string& name : names) {
    if (!name.starts_with("CKV_") || std::find(known.begin(), known.end(), name) != known.end() ||
        std::find(std::begin(kOthersVariables), std::end(kOthersVariables), name) !=
            std::end(kOthersVariables)) {
      continue;
    }
    warnings.push_back(
        absl::StrFormat("%s: unknown variable, ignored%s", name, Suggest(name, known)));
  }
}

void WarnOfMemory(const Config& config, std::vector<std::string>& warnings) {
  std::string group;
  const uint64_t there = UsableMemoryBytes(&group);
  const auto warn = [&](const char* option, uint64_t bytes) {
    if (there == 0 || bytes <= there) return;
    const std::string limit =
        group.empty()
            ? absl::StrFormat("this machine's memory of %d MiB", there >> 20)
            : absl::StrFormat("the %d MiB that the control group allows (%s)", there >> 20, group);
    warnings.push_back(absl::StrFormat(
        "%s: %d MiB is more than %s: the process will be killed before the store is full", option,
        bytes >> 20, limit));
  };
  if (config.HasRole("holder")) {
    warn("store.capacity", config.store_capacity_bytes);
  } else if (config.HasRole("requester")) {
    warn("requester.local_cache_bytes", config.requester_local_cache_bytes);
  }
}

void Apply(const Settings& settings, Config& config, std::map<std::string, std::string>& sources,
           std::vector<std::string>& errors) {
  for (const OptionSpec& option : ConfigOptions()) {
    const auto found = settings.find(std::string(option.key));
    if (found == settings.end()) continue;
    const absl::Status status = AssignOption(option, found->second.value, config);
    if (status.ok()) {
      sources[std::string(option.key)] = found->second.source;
    } else {
      errors.push_back(
          absl::StrFormat("%s: %s", found->second.source, std::string(status.message())));
    }
  }
}

std::string QuoteYaml(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

bool Config::HasRole(std::string_view wanted) const {
  return std::find(role.begin(), role.end(), wanted) != role.end();
}

LaneShape LaneShapeOf(const Config& config) {
  return {config.lane_slot_count, static_cast<uint32_t>(config.lane_request_bytes_max),
          static_cast<uint32_t>(config.lane_reply_bytes_max)};
}

void FillConfig(Config& config) {
  if (config.label_host.empty()) config.label_host = HostName();
  if (config.listen.empty()) config.listen = DefaultListen(config);
  const auto listen = HostPort::Parse(config.listen);
  if (!listen.ok()) return;  // refused where it is used
  if (config.data_listen.empty()) config.data_listen = HostPort{listen->host, 0}.ToString();
  if (!config.name.empty() || listen->port == 0) return;
  config.name = HostName();
  for (const std::string_view role : {"directory", "holder", "requester"}) {
    if (config.HasRole(role)) config.name += absl::StrFormat("-%s", role);
  }
  config.name += absl::StrFormat("-%d", listen->port);
}

absl::StatusOr<ParsedConfig> ReadConfig(std::span<const std::string> arguments,
                                        EnvironmentLookup environment,
                                        std::span<const std::string> environment_names) {
  std::vector<std::string> errors;
  ParsedConfig parsed;
  Flags flags;
  ReadFlags(arguments, flags, errors);
  if (flags.help || flags.version) {
    parsed.action = ConfigAction::kPrint;
    parsed.text = flags.help ? ConfigHelp() : absl::StrFormat("ckvd %s\n", Version());
    return parsed;
  }
  Settings from_file;
  if (flags.config_path.empty()) flags.config_path = environment("CKV_CONFIG").value_or("");
  if (!flags.config_path.empty()) ReadYaml(flags.config_path, from_file, errors);

  Settings from_environment;
  for (const OptionSpec& option : ConfigOptions()) {
    for (const std::string_view key : {option.key, option.former_key}) {
      if (key.empty()) continue;
      const std::string name = OptionEnvironmentName(key);
      const std::optional<std::string> value = environment(name);
      // Composed files pass what they lack as an empty one.
      if (value && !value->empty()) from_environment[std::string(key)] = {*value, name};
    }
  }
  // The lowest first, so that a later one wins; each is checked even where it loses.
  std::map<std::string, std::string> sources;
  for (Settings* settings : {&from_file, &from_environment, &flags.settings}) {
    TakeFormerKeys(*settings, parsed.warnings);
    Apply(*settings, parsed.config, sources, errors);
  }
  if (errors.empty()) {
    FillConfig(parsed.config);
    CheckWhole(parsed.config, errors);
  }
  if (!errors.empty()) {
    std::string text;
    for (const std::string& error : errors) text += (text.empty() ? "" : "\n") + error;
    return absl::InvalidArgumentError(text);
  }
  WarnOfVariables(environment_names, parsed.warnings);
  WarnOfMemory(parsed.config, parsed.warnings);
  if (parsed.config.name.empty() && !parsed.config.store_path.empty()) {
    parsed.warnings.emplace_back(
        "name: with port 0 it changes at every start, and corpora place chunks by it: set --name");
  }
  if (flags.check) {
    parsed.action = ConfigAction::kPrint;
    parsed.text = ConfigToYaml(parsed.config, sources);
  }
  return parsed;
}

std::string ConfigToYaml(const Config& config, const std::map<std::string, std::string>& sources) {
  std::string text;
  std::string group;
  for (const OptionSpec& option : ConfigOptions()) {
    const std::string key(option.key);
    const std::string value = FormatOption(option, config);
    if (value.empty()) continue;  // an empty text is the default of what has one
    const size_t dot = key.find('.');
    std::string outer = dot == std::string::npos ? "" : key.substr(0, dot);
    if (FindOption(outer) != nullptr) outer.clear();  // a value, so its section is written dotted
    if (!outer.empty() && outer != group) text += outer + ":\n";
    group = outer;
    const bool number = option.kind == OptionKind::kCount;
    text += absl::StrFormat("%s%s: %s", outer.empty() ? "" : "  ",
                            outer.empty() ? key : key.substr(dot + 1),
                            number ? value : QuoteYaml(value));
    const auto source = sources.find(key);
    text += source == sources.end() ? "\n" : absl::StrFormat("  # %s\n", source->second);
  }
  return text;
}

}  // namespace ckv
