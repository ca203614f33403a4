#include "client/tools/ctl/fleet/directory_home.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

Json UnprovenJson(const v1::DescribeDirectoryReply& home) {
  Json json = Json::array();
  for (const v1::UnprovenCorpus& corpus : home.unproven_corpora()) {
    json.push_back({{"corpus", corpus.name()},
                    {"tenant", corpus.tenant()},
                    {"version", corpus.version()},
                    {"chunk_count", corpus.chunk_count()},
                    {"missing_count", corpus.missing_count()},
                    {"conflict", corpus.conflict()},
                    {"version_count", corpus.version_count()},
                    {"why", corpus.why()},
                    {"reporters", std::vector<std::string>(corpus.reporters().begin(),
                                                           corpus.reporters().end())}});
  }
  return json;
}

}  // namespace

std::string HomeText(const v1::DescribeDirectoryReply& home) {
  const std::string ago = FormatDuration(
      std::chrono::milliseconds(std::min<uint64_t>(home.started_ago_ms(), uint64_t{1} << 40)));
  std::string text =
      home.path().empty()
          ? absl::StrFormat("in memory, no folder (directory.path): started %s ago", ago)
          : absl::StrFormat("in %s: %d %s read at its start, %s ago", Printable(home.path()),
                            home.read_corpus_count(),
                            home.read_corpus_count() == 1 ? "corpus" : "corpora", ago);
  if (home.missing_holder_count() > 0) {
    absl::StrAppendFormat(&text, "; %s not back since",
                          FormatCount(home.missing_holder_count(), "holder"));
  }
  if (home.rebuilt_corpus_count() > 0)
    absl::StrAppendFormat(&text, "; %d made whole again from its holders",
                          home.rebuilt_corpus_count());
  if (home.redropped_corpus_count() > 0)
    absl::StrAppendFormat(&text, "; %d dropped, as its holders had seen",
                          home.redropped_corpus_count());
  if (!home.old_copy().empty())
    absl::StrAppend(&text, "; an old copy, or without its end: ", Printable(home.old_copy()));
  if (!home.refusal().empty())
    absl::StrAppend(&text, "; refuses changes: ", Printable(home.refusal()));
  return text;
}

Json HomeJson(const v1::DescribeDirectoryReply& home) {
  return {{"path", home.path()},
          {"started_ago_ms", home.started_ago_ms()},
          {"read_corpus_count", home.read_corpus_count()},
          {"read_record_count", home.read_record_count()},
          {"read_ms", home.read_ms()},
          {"missing_holder_count", home.missing_holder_count()},
          {"missing_holders",
           std::vector<std::string>(home.missing_holders().begin(), home.missing_holders().end())},
          {"log_bytes", home.log_bytes()},
          {"snapshot_bytes", home.snapshot_bytes()},
          {"refusal", home.refusal()},
          {"rebuilt_corpus_count", home.rebuilt_corpus_count()},
          {"unproven_corpus_count", home.unproven_corpus_count()},
          {"unproven_corpora", UnprovenJson(home)},
          {"old_copy", home.old_copy()},
          {"redropped_corpus_count", home.redropped_corpus_count()}};
}

std::string EnginesText(const std::vector<v1::EngineFacts>& engines) {
  if (engines.empty()) return "";
  Table table(
      {{"ENGINE"}, {"HOST"}, {"PID", true}, {"RANK"}, {"UP", true}, {"VERSION"}, {"MODEL"}});
  for (const v1::EngineFacts& engine : engines) {
    const std::string rank = engine.rank_count() == 0
                                 ? "-"
                                 : absl::StrFormat("%d of %d", engine.rank(), engine.rank_count());
    const auto age_ms = std::min<uint64_t>(engine.started_ago_ms(), uint64_t{1} << 40);
    table.AddRow({Printable(engine.name()), Printable(engine.host()), std::to_string(engine.pid()),
                  rank, FormatAge(std::chrono::milliseconds(age_ms)), Printable(engine.version()),
                  engine.model().empty() ? "-" : Printable(engine.model())});
  }
  return table.Render();
}

Json EnginesJson(const std::vector<v1::EngineFacts>& engines) {
  Json json = Json::array();
  for (const v1::EngineFacts& engine : engines) {
    json.push_back({{"name", engine.name()},
                    {"host", engine.host()},
                    {"pid", engine.pid()},
                    {"model", engine.model()},
                    {"rank", engine.rank()},
                    {"rank_count", engine.rank_count()},
                    {"version", engine.version()},
                    {"up_ms", engine.started_ago_ms()}});
  }
  return json;
}

}  // namespace ckv::ctl
