// ckvctl gc: drops chunks that no corpus references on the holder that has them. RunGc, in order:
// refuses while holders with chunks of corpora have not reported (CheckHoldersReported); finds the
// garbage of each holder (FindGarbage); refuses if the directory seems to have lost its corpora
// (CheckDirectoryKnows), or if a holder returned or left meanwhile; drops, and reports. A holder
// that fails is a warning, and decides the exit code at the end.

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/garbage.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/status.h"
#include "proto/base/words.h"

namespace ckv::ctl {
namespace {

constexpr size_t kMissingNamesMax = 64;

struct GcOptions {
  bool dry_run = false;
  bool without_corpora = false;
  std::string grace = "1h";
  std::vector<std::string> gone;
};

struct GcResult {
  std::vector<Garbage> holders;
  std::vector<std::string> warnings;  // one for each holder that was not queried to its end
  absl::Status status;                // the first of them
};

void Add(const GarbageTally& more, GarbageTally& to) {
  to.chunk_count += more.chunk_count;
  to.placed_count += more.placed_count;
  to.kept_count += more.kept_count;
  to.young_count += more.young_count;
  to.garbage_count += more.garbage_count;
  to.garbage_bytes += more.garbage_bytes;
  to.dropped_count += more.dropped_count;
  to.dropped_bytes += more.dropped_bytes;
  to.touched_count += more.touched_count;
}

GarbageTally Sum(const GcResult& result) {
  GarbageTally total;
  for (const Garbage& garbage : result.holders) Add(garbage.tally, total);
  return total;
}

Json TallyJson(const GarbageTally& tally) {
  return {{"chunk_count", tally.chunk_count},     {"placed_count", tally.placed_count},
          {"kept_count", tally.kept_count},       {"young_count", tally.young_count},
          {"garbage_count", tally.garbage_count}, {"garbage_bytes", tally.garbage_bytes},
          {"dropped_count", tally.dropped_count}, {"dropped_bytes", tally.dropped_bytes},
          {"touched_count", tally.touched_count}};
}

void Report(const Ctl& ctl, const GcOptions& options, const GcResult& result) {
  Table table({{"HOLDER"},
               {"CHUNKS", true},
               {"PLACED", true},
               {"KEPT", true},
               {"YOUNG", true},
               {"GARBAGE", true},
               {"ROWS", true},
               {"DROPPED", true},
               {"FREED", true}});
  const auto add = [&table](const std::string& name, const GarbageTally& tally) {
    table.AddRow({name, std::to_string(tally.chunk_count), std::to_string(tally.placed_count),
                  std::to_string(tally.kept_count), std::to_string(tally.young_count),
                  std::to_string(tally.garbage_count), FormatBytes(tally.garbage_bytes),
                  std::to_string(tally.dropped_count), FormatBytes(tally.dropped_bytes)});
  };
  Json holders = Json::array();
  for (const Garbage& garbage : result.holders) {
    add(garbage.holder.id.name, garbage.tally);
    Json holder = {{"id", garbage.holder.id.name}};
    holder.update(TallyJson(garbage.tally));
    holders.push_back(std::move(holder));
  }
  const GarbageTally total = Sum(result);
  add("total", total);
  std::string text = table.Render();
  if (options.dry_run) text += "a dry run: nothing was dropped\n";
  if (total.touched_count > 0) {
    text += absl::StrFormat("%s put, asked for or pinned meanwhile, and so kept\n",
                            FormatCount(total.touched_count, "chunk"));
  }
  Json json = {{"dry_run", options.dry_run},
               {"grace_ms", TimeSpanOf(options.grace) / std::chrono::milliseconds(1)}};
  json.update(TallyJson(total));
  json["holders"] = holders;
  json["warnings"] = result.warnings;
  ctl.Print(text, json);
}

void Warn(const Ctl& ctl, const absl::Status& status, GcResult& result) {
  if (status.ok()) return;
  result.warnings.emplace_back(status.message());
  ctl.Note("ckvctl: warning: " + result.warnings.back());
  result.status.Update(status);
}

// Returns the operator's text about holders that have not reported.
std::string MissingText(const std::vector<std::string>& missing, bool is_here) {
  if (missing.empty()) return "";
  std::vector<std::string> names(
      missing.begin(),
      missing.begin() + static_cast<ptrdiff_t>(std::min(missing.size(), kMissingNamesMax)));
  for (std::string& name : names) name = Printable(name);
  const std::string list =
      absl::StrCat(absl::StrJoin(names, ", "), names.size() < missing.size() ? ", ..." : "");
  if (is_here) {
    return absl::StrFormat("\n  registered, and still reporting: %s: try again, or see its log",
                           list);
  }
  return absl::StrFormat(
      "\n  not registered: %s: start %s; or declare that a machine is gone for good (--gone %s) "
      "and move its chunks (corpus partition)",
      list, missing.size() == 1 ? "it" : "them", names[0]);
}

// A holder that has not reported since the directory started may have copies to announce, and
// chunks that only it can report.
absl::Status CheckHoldersReported(const GcOptions& options, Fleet& fleet) {
  if (options.without_corpora) return absl::OkStatus();
  const auto directory = fleet.DescribeDirectory();
  CKV_RETURN_IF_ERROR(directory.status());
  std::set<std::string> missing(directory->missing_holders().begin(),
                                directory->missing_holders().end());
  const size_t unnamed = directory->missing_holder_count() - missing.size();
  for (const std::string& name : options.gone) missing.erase(name);
  if (missing.size() + unnamed == 0) return absl::OkStatus();
  // A directory that was just started may not list the holders yet. Then all count as unregistered.
  const std::vector<Member> holders = fleet.Holders().value_or(std::vector<Member>());
  std::vector<std::string> here, away;
  for (const std::string& name : missing) {
    const bool is_here = std::any_of(holders.begin(), holders.end(),
                                     [&](const Member& member) { return member.id.name == name; });
    (is_here ? here : away).push_back(name);
  }
  const size_t count = missing.size() + unnamed;
  return absl::FailedPreconditionError(
      absl::StrFormat("the directory started %s ago, and %s with chunks of corpora %s not reported "
                      "since: %s%s%s%s\n"
                      "  --without-corpora collects all the same",
                      FormatDuration(std::chrono::milliseconds(
                          std::min<uint64_t>(directory->started_ago_ms(), uint64_t{1} << 40))),
                      FormatCount(count, "holder"), count == 1 ? "has" : "have",
                      missing.empty() ? "" : Printable(*missing.begin()), count > 1 ? ", ..." : "",
                      MissingText(away, /*is_here=*/false), MissingText(here, /*is_here=*/true)));
}

// The holders that are registered, that the directory misses, or on which corpora place chunks.
absl::StatusOr<std::set<std::string>> KnownNames(Fleet& fleet) {
  std::set<std::string> names;
  std::vector<v1::EndedLease> ended;
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, fleet.Members(&ended));
  for (const Member& member : members) names.insert(member.id.name);
  for (const v1::EndedLease& lease : ended) names.insert(lease.member().id());
  if (const auto home = fleet.DescribeDirectory(); home.ok())
    names.insert(home->missing_holders().begin(), home->missing_holders().end());
  CKV_ASSIGN_OR_RETURN(const v1::ListCorporaReply listed, fleet.ListCorpora());
  for (const v1::CorpusSummary& summary : listed.corpora()) {
    const absl::StatusOr<Corpus> corpus = fleet.GetCorpus(summary.name());
    if (!corpus.ok()) continue;  // dropped meanwhile, or not served
    for (const ChunkPlacement& chunk : corpus->chunks) {
      for (const HolderId& holder : chunk.holders()) names.insert(holder.name);
    }
  }
  return names;
}

// A mistyped name would be accepted, and the intended holder would still count as missing.
absl::Status CheckGone(const GcOptions& options, Fleet& fleet) {
  if (options.gone.empty()) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(const std::set<std::string> known, KnownNames(fleet));
  for (const std::string& name : options.gone) {
    if (known.contains(name)) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    const std::string nearest(NearestWord(name, names));
    return absl::InvalidArgumentError(absl::StrFormat(
        "--gone %s: no member has that name, and no corpus places chunks there%s", name,
        nearest.empty() ? "" : absl::StrFormat("\n  did you mean %s?", Printable(nearest))));
  }
  return absl::OkStatus();
}

// A directory that was restarted without a folder has no corpora until they are loaded again. Until
// then everything looks like garbage.
absl::Status CheckDirectoryKnows(const GcOptions& options, const GarbageTally& total) {
  if (options.without_corpora || total.garbage_count == 0 || total.placed_count > 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "no corpus places any of the %s here: did the directory lose its corpora in a restart?\n  "
      "load the corpora again (what is there is reused), then collect; --without-corpora drops "
      "them all the same",
      FormatCount(total.chunk_count, "chunk")));
}

absl::Status RunGc(const Ctl& ctl, const GcOptions& options) {
  const Duration grace = TimeSpanOf(options.grace);
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_RETURN_IF_ERROR(CheckGone(options, fleet));
  CKV_RETURN_IF_ERROR(CheckHoldersReported(options, fleet));
  if (grace == Duration(0)) {
    ctl.Note(
        "ckvctl: warning: --grace 0: chunks of a load that is under way count as garbage, too");
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> holders, fleet.Holders());
  GcResult result;
  for (const Member& holder : holders) {
    auto garbage = FindGarbage(fleet, holder, grace);
    Warn(ctl, garbage.status(), result);
    if (garbage.ok()) result.holders.push_back(*std::move(garbage));
  }
  const GarbageTally total = Sum(result);
  CKV_RETURN_IF_ERROR(CheckDirectoryKnows(options, total));
  // Holders that returned or left during the queries have not been counted.
  CKV_RETURN_IF_ERROR(CheckHoldersReported(options, fleet));
  if (!options.dry_run && total.garbage_count > 0) {
    const auto progress = ctl.StartProgress("drop", "chunks", total.garbage_count);
    for (Garbage& garbage : result.holders) {
      Warn(ctl,
           DropGarbage(fleet, garbage, grace, [&](uint64_t count) { progress->Advance(count); }),
           result);
    }
  }
  Report(ctl, options, result);
  return result.status;
}

}  // namespace

void AddGcCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<GcOptions>();
  CLI::App* gc = AddVerb(
      app, "gc", "Drop the chunks that no corpus places on the holder that has them",
      "  ckvctl gc --dry-run\n  ckvctl gc --grace 2h\n\n"
      "Garbage is what a load or a partition that was interrupted left behind, or a holder that\n"
      "was away when its copies were dropped. A chunk stays that a corpus of any tenant places\n"
      "on that holder, that was pinned, or that a process copied and answers for.\n\n"
      "Why a grace: a load under way has put chunks that no corpus names yet. Before a load\n"
      "publishes, it asks for all its chunks again; each put or question restarts a chunk's\n"
      "idle time, and a chunk is dropped only if it was idle for the grace, which the holder\n"
      "decides in one step. So the grace must be longer than the time between a load's last\n"
      "question and its publishing; an hour is far more than that takes. A holder that was\n"
      "restarted counts from its start.\n\n"
      "It refuses while a holder on which corpora place chunks has not reported since the "
      "directory\n"
      "started, and names it. It never waits. If its machine is gone for good, name it with "
      "--gone.\n"
      "\n"
      "PLACED counts chunks that a corpus places there, KEPT those that are pinned, YOUNG those\n"
      "that were put or asked for within the grace. The rest is GARBAGE, and ROWS are its "
      "bytes.\n\n"
      "It can be interrupted at any point and run again: each drop is independent.");
  gc->add_flag("--dry-run", options->dry_run, "Only show what would be dropped");
  gc->add_option("--grace", options->grace, "Leave what was put or asked for within this time")
      ->capture_default_str()
      ->check(TimeSpan())
      ->type_name("TIME");
  gc->add_option("--gone", options->gone,
                 "A holder that is gone for good: its report is not needed (repeatable)")
      ->type_name("HOLDER")
      ->take_all();
  gc->add_flag("--without-corpora", options->without_corpora,
               "Even if no corpus places any chunk, as after the last one was dropped; and even "
               "if a holder\nhas not reported since the directory started");
  gc->callback([&ctl, options] { ctl.run = [&ctl, options] { return RunGc(ctl, *options); }; });
}

}  // namespace ckv::ctl
