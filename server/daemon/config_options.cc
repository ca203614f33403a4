// kOptions has a row for each option: key, kind, member, limits, help. The functions behind it work
// for every row: AssignOption parses a text by the option's kind and checks it, FormatOption is the
// reverse, and ConfigHelp prints the table. A new option needs a row and a member of Config.

#include "server/daemon/config_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>

#include "absl/strings/str_format.h"
#include "attention/worker_pool.h"
#include "client/grpc/default_addresses.h"
#include "client/requester.h"
#include "proto/base/byte_size.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "proto/base/time_span.h"
#include "proto/base/words.h"
#include "proto/corpus.h"
#include "server/directory/lease_end.h"
#include "server/holder/holder.h"

namespace ckv {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;
constexpr uint64_t kTiB = 1024 * kGiB;

struct Suffix {
  std::string_view name;
  uint64_t factor;
};
// Largest first, so that formatting finds the shortest text.
constexpr Suffix kByteSuffixes[] = {
    {"TiB", kTiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}, {"B", 1}};
constexpr Suffix kTimeSuffixes[] = {
    {"m", 60'000'000'000}, {"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}};

const OptionSpec kOptions[] = {
    {"role", OptionKind::kList, &Config::role, 0, 0, "directory,holder,requester", "",
     "what this process is; several may share it"},
    {"name", OptionKind::kName, &Config::name, 0, 0, "", "",
     "unique in a directory, which places chunks by it; if unset, host-role-port, as in "
     "node1-holder-7401"},
    {"listen", OptionKind::kAddress, &Config::listen, 0, 0, "", "host:port",
     "address of the control plane (gRPC), port 0: a free one; default 127.0.0.1:7311 (requester), "
     "else 127.0.0.1:7400 (directory), else 127.0.0.1:7401"},
    {"advertise", OptionKind::kAddress, &Config::advertise, 0, 0, "", "host:port",
     "where peers reach it; if unset, the listen address as bound"},
    {"label.host", OptionKind::kName, &Config::label_host, 0, 0, "", "",
     "what fails together with this member: its host. Copies of a chunk are on holders of "
     "different "
     "zones, else racks, else hosts. If unset, the name of the machine"},
    {"label.rack", OptionKind::kName, &Config::label_rack, 0, 0, "", "",
     "its rack; if unset, that of all members without one"},
    {"label.zone", OptionKind::kName, &Config::label_zone, 0, 0, "", "",
     "its zone; if unset, that of all members without one"},
    {"directory", OptionKind::kPeerAddresses, &Config::directory, 0, kDirectoryCountMax, "",
     "host:port[,host:port...]",
     "the directory; of several, all of them, and the one that leads is found; may be empty only "
     "if this process is the directory"},
    {"directory.path", OptionKind::kText, &Config::directory_path, 0, 0, "", "folder",
     "folder that keeps a directory's corpora over a restart; if unset, they end with the process"},
    {"directory.store", OptionKind::kText, &Config::directory_store, 0, 0, "",
     "etcd://host:port,...",
     "instead of a folder: the etcd in which several directories of one fleet keep their state; "
     "one of them leads. /NAME behind it names the fleet, if several share that etcd"},
    {"data_listen", OptionKind::kAddress, &Config::data_listen, 0, 0, "", "host:port",
     "address of a holder's tcp lanes; port 0 takes a free one; if unset, port 0 at the host of "
     "listen"},
    {"fabrics", OptionKind::kList, &Config::fabrics, 0, 0, "shm,tcp,verbs,loopback", "",
     "how query rows may travel; a requester takes the fastest that a holder has, too, and the "
     "first "
     "of equals; loopback stays inside one process"},
    {"fabric", OptionKind::kChoice, &Config::fabric, 0, 0, "auto,shm,tcp,loopback,verbs", "",
     "the one of `fabrics` that a requester takes without a probe; auto takes the fastest"},
    {"rdma_fallback", OptionKind::kChoice, &Config::rdma_fallback, 0, 0, "refuse,tcp", "",
     "what a requester does if both sides have verbs and it fails: refuse the call, or take tcp "
     "and report it"},
    {"verbs.device", OptionKind::kText, &Config::verbs_device, 0, 0, "", "name",
     "device of verbs lanes, as in /sys/class/infiniband; if unset, the only one"},
    {"verbs.port", OptionKind::kCount, &Config::verbs_port, 1, 255, "", "", "port of that device"},
    {"verbs.gid_index", OptionKind::kCount, &Config::verbs_gid_index, 0, kVerbsGidIndexAuto, "", "",
     "the port's address to use; 256 takes RoCE v2 with an IPv4 address, else the first"},
    {"verbs.mtu", OptionKind::kCount, &Config::verbs_mtu, 0, 4096, "", "bytes",
     "256, 512, 1024, 2048 or 4096; if 0, the port's"},
    {"verbs.timeout", OptionKind::kCount, &Config::verbs_timeout, 1, 31, "", "",
     "an unanswered packet is sent again after 4.096 us x 2^this"},
    {"verbs.retry_count", OptionKind::kCount, &Config::verbs_retry_count, 0, 6, "", "times",
     "how often it is sent again before the lane is down"},
    {"tcp.busy_poll_us", OptionKind::kCount, &Config::tcp_busy_poll_us, 0, kBusyPollUsMax, "",
     "microseconds", "how long a poll of a tcp lane asks the network card itself; if 0, never"},
    {"store.map_bytes_max", OptionKind::kBytes, &Config::store_map_bytes_max, 0, 64 * kTiB, "",
     "bytes",
     "memory for copies of chunks that requesters of this host map; if 0, a sixteenth of "
     "store.capacity; if 1, none are handed over"},
    {"store.shadow_percent", OptionKind::kCount, &Config::store_shadow_percent, 0, 50, "",
     "per cent",
     "most of store.capacity for fp8 copies of evicted chunks, which answer requests that allow an "
     "approximation; if 0, none are made"},
    {"store.stripe_percent", OptionKind::kCount, &Config::store_stripe_percent, 0, 100, "",
     "per cent",
     "most memory, in addition to store.capacity and in per cent of it, for rows of chunks on disk "
     "that "
     "selections read and may select again; if 0, none are kept"},
    {"store.path", OptionKind::kText, &Config::store_path, 0, 0, "", "folder",
     "folder that keeps a holder's chunks over a restart; if unset, they end with the process"},
    {"store.capacity", OptionKind::kBytes, &Config::store_capacity_bytes, kMiB, 64 * kTiB, "",
     "bytes", "memory that a holder keeps for rows"},
    {"store.pages", OptionKind::kChoice, &Config::store_pages, 0, 0, "auto,reserved,small", "",
     "pages of that memory: auto takes reserved huge ones (vm.nr_hugepages) if there are enough, "
     "else "
     "transparent huge ones, else small ones; reserved refuses to start without them"},
    {"store.chunk_count_max", OptionKind::kCount, &Config::store_chunk_count_max, 1, kChunkCountMax,
     "", "chunks", "most chunks that a holder keeps"},
    {"store.scrub_bytes_per_second", OptionKind::kBytes, &Config::store_scrub_bytes_per_second, 0,
     64 * kGiB, "", "bytes",
     "how fast a holder checks its chunks in memory and on disk, over and over; a pass takes all "
     "their bytes divided by this; if 0, never"},
    {"replicas.percent", OptionKind::kCount, &Config::replicas_percent, 0, 100, "", "per cent",
     "most of store.capacity for copies that chunk replicate makes here; if 0, none are made"},
    {"repair.bytes_per_second", OptionKind::kBytes, &Config::repair_bytes_per_second, 64 * kKiB,
     64 * kGiB, "", "bytes",
     "how fast a holder copies chunks that the directory orders (after a loss or a drain, for a "
     "new holder, hot ones), all its flows together"},
    {"repair.flow_count", OptionKind::kCount, &Config::repair_flow_count, 1, 16, "", "flows",
     "how many of these chunks it copies at once"},
    {"repair.loss_after", OptionKind::kDuration, &Config::repair_loss_after, 1000, 86'400'000, "",
     "",
     "how long a holder may be offline before a directory orders its chunks from others; a restart "
     "of its host must be shorter"},
    {"repair.drop_after", OptionKind::kDuration, &Config::repair_drop_after, 0, 604'800'000, "", "",
     "how long a holder keeps chunks that no corpus places on it any more, after a move, a new "
     "version or a drop, since the last request for them; if 0, until ckvctl gc. Longer than a "
     "load takes to publish what it found"},
    {"repair.fill_new_holders", OptionKind::kChoice, &Config::repair_fill_new_holders, 0, 0,
     "on,off", "",
     "whether a directory gives a new holder its share of the chunks that others have"},
    {"repair.copy_hot_chunks", OptionKind::kChoice, &Config::repair_copy_hot_chunks, 0, 0, "on,off",
     "",
     "whether a directory has hot chunks copied to other holders, under their leases, while the "
     "attends of their own holders wait for each other"},
    {"directory.expiry_grace", OptionKind::kDuration, &Config::directory_expiry_grace, 0,
     86'400'000, "", "",
     "how long the time to live of a corpus must have ended by the wall clock before a "
     "directory drops it; a clock that jumps forward must be set right within it"},
    {"compute_threads", OptionKind::kCount, &Config::compute_threads, 1,
     WorkerPool::kThreadCountMax, "", "threads",
     "threads of a holder's kernels, its dispatcher included"},
    {"kernel_target", OptionKind::kText, &Config::kernel_target, 0, 0, "", "name",
     "instruction set of all kernels, as KERNEL of ckvctl status names it. Give all processes of a "
     "mixed fleet one that all hosts have, and their bits are equal; auto takes the fastest here"},
    {"backend", OptionKind::kChoice, &Config::backend, 0, 0, "auto,cpu,cuda", "",
     "what computes: the processor, or a GPU by the library libckv_cuda.so in ckvd's folder or in "
     "../lib/ckv from there; auto takes the GPU if that library finds one, a holder can use it, "
     "and kernel_target names none; cuda refuses to start without"},
    {"session_count_max", OptionKind::kCount, &Config::session_count_max, 1, kSessionCountMax, "",
     "sessions", "most sessions that are open on a holder at once"},
    {"batch_request_count_max", OptionKind::kCount, &Config::batch_request_count_max, 1,
     kBatchRequestCountMax, "", "requests", "most requests that one kernel call takes together"},
    {"queue_request_count_max", OptionKind::kCount, &Config::queue_request_count_max, 1,
     kQueueRequestCountMax, "", "requests",
     "most requests that wait on a holder; more are refused with a hint when to retry"},
    {"spin_us", OptionKind::kCount, &Config::spin_us, 0, 1'000'000, "", "microseconds",
     "how long a thread polls its lanes before it sleeps; it polls through waits of up to 2 ms "
     "that recur, not while other threads want its processor, and never with 0"},
    {"lane.slot_count", OptionKind::kCount, &Config::lane_slot_count, 1, kSlotCountMax, "", "slots",
     "slots of a requester's lane: how many requests may be in flight on it"},
    {"lane.request_bytes_max", OptionKind::kBytes, &Config::lane_request_bytes_max, 4 * kKiB,
     kSlotBytesMax, "", "bytes", "most bytes of one request on a lane"},
    {"lane.reply_bytes_max", OptionKind::kBytes, &Config::lane_reply_bytes_max, 4 * kKiB,
     kSlotBytesMax, "", "bytes", "most bytes of one reply on a lane"},
    {"call_count_max", OptionKind::kCount, &Config::call_count_max, 1,
     RequesterOptions::kCallCountMax, "", "calls",
     "most calls in progress in a requester at once; more wait", "engine_count_max"},
    {"rpc_thread_count_max", OptionKind::kCount, &Config::rpc_thread_count_max, 16, 4096, "",
     "threads", "most threads of the control plane; half of them may serve long streams"},
    {"lease_ttl", OptionKind::kDuration, &Config::lease_ttl,
     kLeaseTtlMin / std::chrono::milliseconds(1), kLeaseTtlMax / std::chrono::milliseconds(1), "",
     "", "lease that a member requests; a directory grants it to members that request none"},
    {"drain_timeout", OptionKind::kDuration, &Config::drain_timeout, 0, 600'000, "", "",
     "how long requests in flight may take to end after SIGTERM", "", /*live=*/true},
    {"default_timeout", OptionKind::kDuration, &Config::default_timeout, 1, 600'000, "", "",
     "time limit of a request to the requester that names none"},
    {"requester.profile", OptionKind::kText, &Config::requester_profile, 0, 0, "", "path",
     "constants that ckvctl calibrate --profile wrote on this host, for decisions about corpora of "
     "the same row widths; read once, at the start"},
    {"requester.local_cache_bytes", OptionKind::kBytes, &Config::requester_local_cache_bytes, 0,
     64 * kTiB, "", "bytes",
     "memory for chunks that a requester prefetches for streams of policy auto, where that is "
     "faster, "
     "and cache; taken as it is used. In a process with a holder it is at most a quarter of "
     "store.capacity. If "
     "0, auto routes every query and cache is refused"},
    {"oracle.file", OptionKind::kText, &Config::oracle_file, 0, 0, "", "path",
     "JSON with the network's costs for a requester, or for Rank of a directory "
     "(client/cost/oracle_file.h); read every second"},
    {"oracle.address", OptionKind::kPeerAddress, &Config::oracle_address, 0, 0, "", "host:port",
     "service that returns them instead (proto/ckv/v1/oracle.proto); queried every second"},
    {"oracle.host", OptionKind::kText, &Config::oracle_host, 0, 0, "", "name",
     "this requester's host as the oracle names it; if unset, that of advertise, else of listen"},
    {"metrics.address", OptionKind::kAddress, &Config::metrics_address, 0, 0, "", "host:port",
     "where /metrics, /healthz, /readyz and a status page are served, for example "
     "127.0.0.1:9464; port 0: a free one, see the log; if unset, nowhere. Everybody who reaches it "
     "may read it"},
    {"log.level", OptionKind::kChoice, &Config::log_level, 0, 0, "trace,debug,info,warn,error,off",
     "", "what is worth a line in the log on stderr", "", /*live=*/true},
    {"log.format", OptionKind::kChoice, &Config::log_format, 0, 0, "text,logfmt,json", "",
     "how a line of the log looks: for people, or for programs with name, role and place in the "
     "source. Under journald lines have priorities and no time",
     "", /*live=*/true},
    {"trace.path", OptionKind::kText, &Config::trace_path, 0, 0, "", "path",
     "file for spans of sampled calls, in lines of OTLP/JSON; if unset, none are written"},
    {"trace.file_bytes_max", OptionKind::kBytes, &Config::trace_file_bytes_max, kMiB, kTiB, "",
     "bytes", "most bytes of trace.path; it is then renamed, with .1 behind its name"},
    {"trace.sample_one_in", OptionKind::kCount, &Config::trace_sample_one_in, 0, 1'000'000'000, "",
     "calls",
     "of a requester's calls without a traceparent, one in this many is sampled; if 0, none. A "
     "traceparent decides for its call"},
    {"ready_file", OptionKind::kText, &Config::ready_file, 0, 0, "", "path",
     "file that gets the address as bound, written whole, once this process serves"},
};

std::vector<std::string> SplitList(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, comma);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.emplace_back(part);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

std::string JoinList(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += ",";
    text += part;
  }
  return text;
}

// Digits, then the rest; nothing where there are no digits or too many.
std::optional<uint64_t> TakeNumber(std::string_view& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

absl::Status Refuse(std::string_view text, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is not %s", text, expected));
}

std::string FormatScaled(uint64_t value, std::span<const Suffix> suffixes) {
  for (const Suffix& suffix : suffixes) {
    if (value != 0 && value % suffix.factor == 0) {
      return absl::StrFormat("%d%s", value / suffix.factor, suffix.name);
    }
  }
  return absl::StrFormat("%d%s", value / suffixes.back().factor, suffixes.back().name);
}

absl::Status CheckRange(const OptionSpec& option, uint64_t value, std::string_view text,
                        std::span<const Suffix> suffixes, uint64_t unit) {
  if (value >= option.min * unit && value <= option.max * unit) return absl::OkStatus();
  const auto show = [&](uint64_t limit) {
    return suffixes.empty() ? absl::StrFormat("%d", limit) : FormatScaled(limit * unit, suffixes);
  };
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is out of range: %s to %s", text, show(option.min), show(option.max)));
}

absl::Status CheckChoice(const OptionSpec& option, const std::string& value) {
  const std::vector<std::string> choices = SplitList(option.choices);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("'%s' is not one of %s", value, option.choices));
}

absl::Status AssignList(const OptionSpec& option, std::string_view text, Config& config) {
  std::vector<std::string> parts = SplitList(text);
  for (size_t i = 0; i < parts.size(); ++i) {
    CKV_RETURN_IF_ERROR(CheckChoice(option, parts[i]));
    const auto here = parts.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(parts.begin(), here, parts[i]) != here) {
      return absl::InvalidArgumentError(absl::StrFormat("'%s' is there twice", parts[i]));
    }
  }
  if (parts.empty()) return absl::InvalidArgumentError("an empty list");
  config.*std::get<std::vector<std::string> Config::*>(option.member) = std::move(parts);
  return absl::OkStatus();
}

// Whether it may be empty is for the whole to say.
absl::Status CheckAddress(std::string_view text, uint16_t port_min) {
  return text.empty() ? absl::OkStatus() : HostPort::Parse(text, port_min).status();
}

absl::Status CheckName(std::string_view text) {
  const bool good =
      text.size() <= kCorpusNameBytesMax && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
      });
  return good ? absl::OkStatus()
              : Refuse(text, "a name: at most 128 letters, digits, '-', '_' and '.'");
}

absl::Status AssignText(const OptionSpec& option, std::string_view text, Config& config) {
  std::string value(text);
  switch (option.kind) {
    case OptionKind::kChoice:
      CKV_RETURN_IF_ERROR(CheckChoice(option, value));
      break;
    case OptionKind::kName:
      CKV_RETURN_IF_ERROR(CheckName(text));
      break;
    case OptionKind::kAddress:
      CKV_RETURN_IF_ERROR(CheckAddress(text, /*port_min=*/0));
      break;
    case OptionKind::kPeerAddress:
      CKV_RETURN_IF_ERROR(CheckAddress(text, /*port_min=*/1));
      break;
    case OptionKind::kPeerAddresses:
      if (!text.empty()) CKV_RETURN_IF_ERROR(ParsePeerAddresses(text, option.max).status());
      break;
    default:
      break;
  }
  config.*std::get<std::string Config::*>(option.member) = std::move(value);
  return absl::OkStatus();
}

// "4KiB to 64MiB", "shm,tcp", "host:port".
std::string DescribeValues(const OptionSpec& option) {
  switch (option.kind) {
    case OptionKind::kCount:
      return absl::StrFormat("%s%s%d to %d", option.unit, option.unit.empty() ? "" : ", ",
                             option.min, option.max);
    case OptionKind::kBytes:
      return absl::StrFormat("%s, %s to %s", option.unit, FormatScaled(option.min, kByteSuffixes),
                             FormatScaled(option.max, kByteSuffixes));
    case OptionKind::kDuration:
      return absl::StrFormat("%s to %s", FormatScaled(option.min * 1'000'000, kTimeSuffixes),
                             FormatScaled(option.max * 1'000'000, kTimeSuffixes));
    case OptionKind::kChoice:
      return absl::StrFormat("one of %s", option.choices);
    case OptionKind::kList:
      return absl::StrFormat("of %s", option.choices);
    default:
      return std::string(option.unit);
  }
}

}  // namespace

std::span<const OptionSpec> ConfigOptions() { return kOptions; }

std::string OptionEnvironmentName(std::string_view key) {
  std::string name = "CKV_";
  for (const char c : key) name += c == '.' ? '_' : c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c;
  return name;
}

std::string OptionFlagName(std::string_view key) {
  std::string name = "--";
  for (const char c : key) name += c == '.' || c == '_' ? '-' : c;
  return name;
}

absl::Status AssignOption(const OptionSpec& option, std::string_view text, Config& config) {
  switch (option.kind) {
    case OptionKind::kCount: {
      std::string_view rest = text;
      const std::optional<uint64_t> value = TakeNumber(rest);
      if (!value || !rest.empty()) return Refuse(text, "a whole number");
      CKV_RETURN_IF_ERROR(CheckRange(option, *value, text, {}, 1));
      config.*std::get<uint32_t Config::*>(option.member) = static_cast<uint32_t>(*value);
      return absl::OkStatus();
    }
    case OptionKind::kBytes: {
      CKV_ASSIGN_OR_RETURN(const uint64_t value, ParseByteSize(text));
      CKV_RETURN_IF_ERROR(CheckRange(option, value, text, kByteSuffixes, 1));
      config.*std::get<uint64_t Config::*>(option.member) = value;
      return absl::OkStatus();
    }
    case OptionKind::kDuration: {
      CKV_ASSIGN_OR_RETURN(const Duration span, ParseTimeSpan(text));
      const auto value = static_cast<uint64_t>(span.count());
      CKV_RETURN_IF_ERROR(CheckRange(option, value, text, kTimeSuffixes, 1'000'000));
      config.*std::get<Duration Config::*>(option.member) = span;
      return absl::OkStatus();
    }
    case OptionKind::kList:
      return AssignList(option, text, config);
    default:
      return AssignText(option, text, config);
  }
}

std::string FormatOption(const OptionSpec& option, const Config& config) {
  switch (option.kind) {
    case OptionKind::kCount:
      return absl::StrFormat("%d", config.*std::get<uint32_t Config::*>(option.member));
    case OptionKind::kBytes:
      return FormatScaled(config.*std::get<uint64_t Config::*>(option.member), kByteSuffixes);
    case OptionKind::kDuration: {
      const Duration value = config.*std::get<Duration Config::*>(option.member);
      return FormatScaled(static_cast<uint64_t>(value.count()), kTimeSuffixes);
    }
    case OptionKind::kList:
      return JoinList(config.*std::get<std::vector<std::string> Config::*>(option.member));
    default:
      return config.*std::get<std::string Config::*>(option.member);
  }
}

std::string ConfigHelp() {
  std::string text =
      "ckvd: a daemon of ckv, which answers attention over cKV cache elsewhere\n\n"
      "  ckvd --role ROLE[,ROLE] [--config FILE] [options]\n\n"
      "Flags win over CKV_* environment variables, which win over the YAML file.\n"
      "An empty variable counts as unset.\n\n"
      "  --config FILE        or CKV_CONFIG: YAML, keys as below, nested or dotted\n"
      "  --check-config       print the effective configuration, or its errors (exit 2)\n"
      "  --version, --help\n\n";
  const Config defaults;
  for (const OptionSpec& option : ConfigOptions()) {
    constexpr std::string_view kIndent = "      ";
    text += absl::StrFormat("  %s VALUE\n%s%s\n", OptionFlagName(option.key), kIndent,
                            WrapWords(option.help, kHelpColumns, kIndent));
    const std::string values = DescribeValues(option);
    const std::string preset = FormatOption(option, defaults);
    const std::string facts = absl::StrFormat(
        "key %s, environment %s%s%s%s%s%s", option.key, OptionEnvironmentName(option.key),
        values.empty() ? "" : "; ", values, preset.empty() ? "" : "; default ", preset,
        option.live ? "; changes on SIGHUP" : "");
    text += absl::StrFormat("%s%s\n", kIndent, WrapWords(facts, kHelpColumns, kIndent));
  }
  text +=
      "\nExamples\n"
      "  ckvd --role directory --listen 127.0.0.1:7400\n"
      "  ckvd --role holder --name h1 --listen 127.0.0.1:0 --directory 127.0.0.1:7400 \\\n"
      "       --store-capacity 4GiB\n"
      "  ckvd --role requester --name r1 --listen 127.0.0.1:7311 --directory 127.0.0.1:7400\n"
      "  ckvd --config /etc/ckv/ckvd.yaml --check-config\n\n"
      "SIGTERM and SIGINT drain and exit 0; a second one exits at once with 1. SIGHUP\n"
      "reads the configuration again: options marked above change at once, and the log\n"
      "names those that need a restart.\n";
  return text;
}

}  // namespace ckv
