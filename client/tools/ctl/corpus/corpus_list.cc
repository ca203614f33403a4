// ckvctl corpus list: the corpora that a tenant may read, their sizes, and whether holders have
// them.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/grpc/health_convert.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/parallel_jobs.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// Facts from the chunks of a corpus. Its summary is from the directory.
struct ListedCorpus {
  uint32_t layers = 0;
  uint64_t row_bytes = 0;
  size_t copies_min = 0, copies_max = 0;  // holders of one chunk
  std::optional<uint64_t> missing_count;  // chunks that no live holder has, if that is known
  uint64_t missing_copy_count = 0;        // copies that are placed and that no live holder has
};

// The chunks that corpora lack, as reported by the directory. Unset if it reports nothing, and
// while it waits for holders just after its start.
using Lacking = std::optional<FleetFacts>;

Lacking WhatIsLacking(Fleet& fleet, const absl::StatusOr<v1::DescribeDirectoryReply>& home) {
  if (!home.ok() || absl::IsUnavailable(fleet.Members().status())) return std::nullopt;
  absl::StatusOr<FleetFacts> facts = FactsFrom(*home);
  if (!facts.ok()) return std::nullopt;
  return *std::move(facts);
}

// "5 h", or "> 5 h" of one that is older than the directory's process, `up_ms`.
std::string AgeText(const v1::CorpusSummary& c, std::optional<uint64_t> up_ms) {
  const auto text = [](uint64_t ms) {
    return FormatAge(std::chrono::milliseconds(std::min(ms, uint64_t{1} << 40)));
  };
  if (c.has_published_ago_ms()) return text(c.published_ago_ms());
  return up_ms ? "> " + text(*up_ms) : "-";
}

ListedCorpus Describe(const Corpus& corpus, const Lacking& lacking) {
  ListedCorpus listed;
  listed.layers = corpus.geometry.layers;
  listed.row_bytes = corpus.token_count() * corpus.geometry.token_bytes();
  bool first = true;
  for (const ChunkPlacement& chunk : corpus.chunks) {
    const size_t copies = chunk.holders().size() + chunk.leased().size();
    listed.copies_min = first ? copies : std::min(listed.copies_min, copies);
    listed.copies_max = std::max(listed.copies_max, copies);
    first = false;
  }
  if (!lacking) return listed;
  // A corpus that the directory did not check must not look complete.
  if (lacking->skipped_corpus_count == 0) listed.missing_count = 0;
  for (const CorpusFacts& facts : lacking->corpora) {
    if (facts.name != corpus.name || facts.tenant != corpus.tenant) continue;
    listed.missing_count = facts.missing_count;
    listed.missing_copy_count = facts.missing_copy_count;
  }
  return listed;
}

// "3" for chunks that no live holder has, or "2 copies" if other holders have the chunks.
std::string MissingText(const std::optional<ListedCorpus>& listed) {
  if (!listed || !listed->missing_count) return "-";
  if (*listed->missing_count > 0 || listed->missing_copy_count == 0)
    return std::to_string(*listed->missing_count);
  return absl::StrFormat("%d %s", listed->missing_copy_count,
                         listed->missing_copy_count == 1 ? "copy" : "copies");
}

std::string CopiesText(const ListedCorpus& listed) {
  return listed.copies_min == listed.copies_max
             ? std::to_string(listed.copies_max)
             : absl::StrFormat("%d-%d", listed.copies_min, listed.copies_max);
}

// All queries end after this many call timeouts, because a directory that hangs answers none.
constexpr int kLookLimitCountMax = 6;

// For all corpora together: the directory sends 110 bytes for each chunk.
constexpr uint64_t kListedChunkCountMax = 1u << 20;

// One entry for each listed corpus, in that order. Empty if the corpus was dropped meanwhile, is
// not proven to be complete, is not read by the directory in time, or does not fit into
// kListedChunkCountMax chunks in all.
using Looks = std::vector<absl::StatusOr<std::optional<ListedCorpus>>>;

absl::StatusOr<std::optional<ListedCorpus>> LookAt(Fleet& fleet, const std::string& name,
                                                   const Lacking& lacking) {
  const absl::StatusOr<Corpus> corpus = fleet.GetCorpus(name);
  if (absl::IsNotFound(corpus.status()) || absl::IsUnavailable(corpus.status()) ||
      absl::IsDeadlineExceeded(corpus.status())) {
    return std::nullopt;
  }
  if (!corpus.ok()) return corpus.status();
  return Describe(*corpus, lacking);
}

absl::StatusOr<Looks> LookAtAll(Fleet& own, Fleet& shared, const v1::ListCorporaReply& list,
                                const Lacking& lacking) {
  // Connects before several threads query.
  for (Fleet* fleet : {&own, &shared}) CKV_RETURN_IF_ERROR(fleet->directory().status());
  Looks looks(static_cast<size_t>(list.corpora_size()), std::optional<ListedCorpus>());
  std::vector<int> chosen;
  uint64_t left = kListedChunkCountMax;
  for (int i = 0; i < list.corpora_size(); ++i) {
    const uint64_t chunk_count = list.corpora(i).chunk_count();
    if (chunk_count > left) continue;
    left -= chunk_count;
    chosen.push_back(i);
  }
  const Instant deadline = own.clock().Now() + own.options().timeout * kLookLimitCountMax;
  RunParallel(chosen.size(), [&](size_t i) {
    if (own.clock().Now() >= deadline) return;
    const v1::CorpusSummary& summary = list.corpora(chosen[i]);
    looks[static_cast<size_t>(chosen[i])] =
        LookAt(summary.tenant().empty() ? shared : own, summary.name(), lacking);
  });
  return looks;
}

Json ListJson(const v1::CorpusSummary& c, const std::optional<ListedCorpus>& listed,
              std::optional<uint64_t> up_ms) {
  Json json = {{"name", c.name()},
               {"tenant", c.tenant()},
               {"version", c.version()},
               {"chunk_count", c.chunk_count()},
               {"token_count", c.token_count()},
               {"model", c.model()},
               {"expires_at_ms", c.expires_at_ms()}};
  if (c.has_published_ago_ms()) {
    json["age_ms"] = c.published_ago_ms();
  } else if (up_ms) {
    json["age_ms_min"] = *up_ms;
  }
  if (!listed) return json;
  json["layers"] = listed->layers;
  json["total_row_bytes"] = listed->row_bytes;
  json["copies_min"] = listed->copies_min;
  json["copies_max"] = listed->copies_max;
  if (listed->missing_count) {
    json["missing_count"] = *listed->missing_count;
    json["missing_copy_count"] = listed->missing_copy_count;
  }
  return json;
}

// Lists the corpora that exist but are not served.
void AddUnproven(const absl::StatusOr<v1::DescribeDirectoryReply>& home, Table& table, Json& json) {
  json["unproven"] = Json::array();
  if (!home.ok()) return;
  for (const v1::UnprovenCorpus& corpus : home->unproven_corpora()) {
    table.AddRow({corpus.name(), corpus.tenant().empty() ? "-" : corpus.tenant(),
                  std::to_string(corpus.chunk_count()), "-", "-", "-", "-", "not served", "-",
                  "-"});
    json["unproven"].push_back({{"name", corpus.name()},
                                {"tenant", corpus.tenant()},
                                {"chunk_count", corpus.chunk_count()},
                                {"missing_count", corpus.missing_count()}});
  }
}

absl::Status RunList(const Ctl& ctl) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const v1::ListCorporaReply reply, fleet.ListCorpora());
  const absl::StatusOr<v1::DescribeDirectoryReply> home = fleet.DescribeDirectory();
  const Lacking lacking = WhatIsLacking(fleet, home);
  std::optional<uint64_t> up_ms;
  if (home.ok()) up_ms = home->started_ago_ms();
  // A tenant's own corpus hides a shared one of its name.
  FleetOptions of_all = ctl.fleet;
  of_all.tenant.clear();
  of_all.directory = fleet.directory_address();
  Fleet shared(std::move(of_all), ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Looks looks, LookAtAll(fleet, shared, reply, lacking));

  Json json = {{"corpora", Json::array()}};
  Table table({{"CORPUS"},
               {"TENANT"},
               {"CHUNKS", true},
               {"TOKENS", true},
               {"BYTES", true},
               {"LAYERS", true},
               {"COPIES", true},
               {"MISSING", true},
               {"AGE", true},
               {"MODEL"}});
  for (int i = 0; i < reply.corpora_size(); ++i) {
    const v1::CorpusSummary& c = reply.corpora(i);
    CKV_ASSIGN_OR_RETURN(const std::optional<ListedCorpus> listed, looks[static_cast<size_t>(i)]);
    table.AddRow({c.name(), c.tenant().empty() ? "-" : c.tenant(), std::to_string(c.chunk_count()),
                  std::to_string(c.token_count()), listed ? FormatBytes(listed->row_bytes) : "-",
                  listed ? std::to_string(listed->layers) : "-", listed ? CopiesText(*listed) : "-",
                  MissingText(listed), AgeText(c, up_ms), c.model()});
    json["corpora"].push_back(ListJson(c, listed, up_ms));
  }
  AddUnproven(home, table, json);
  ctl.Print(table.row_count() > 0 ? table.Render() : "no corpora\n", json);
  return absl::OkStatus();
}

}  // namespace

void AddCorpusListCommand(CLI::App& corpus, Ctl& ctl) {
  CLI::App* list = AddVerb(
      corpus, "list", "List the corpora",
      "  ckvctl corpus list\n  ckvctl corpus list --tenant acme -o json\n\n"
      "BYTES are the rows of one copy. COPIES are holders of a chunk, the fewest and the most.\n"
      "MISSING counts chunks that no live holder has, or copies if other holders have the chunks:\n"
      "their holders are gone, or reported that they lack them. - means unknown, as for a few\n"
      "seconds after the directory's start, or for corpora that it did not check (finding\n"
      "corpora-skipped). A corpus that is not proven to be complete is not served. AGE is time\n"
      "since this version of the corpus was published, as far as the directory's process saw it:\n"
      "> 5 h is before its start. ckvctl corpus show names the version.");
  list->callback([&ctl] { ctl.run = [&ctl] { return RunList(ctl); }; });
}

}  // namespace ckv::ctl
