#include "client/tools/ctl/corpus/load_report.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

absl::flat_hash_set<ChunkId> IdsOf(const Corpus* corpus) {
  absl::flat_hash_set<ChunkId> ids;
  if (corpus == nullptr) return ids;
  for (const ChunkPlacement& chunk : corpus->chunks) ids.insert(chunk.id);
  return ids;
}

HolderTally Sum(const std::map<std::string, HolderTally>& tallies) {
  HolderTally total;
  for (const auto& [name, tally] : tallies) {
    total.copies_sent += tally.copies_sent;
    total.copies_found += tally.copies_found;
    total.bytes_sent += tally.bytes_sent;
    total.bytes_sent_found += tally.bytes_sent_found;
  }
  return total;
}

Json TallyJson(const HolderTally& tally) {
  return {{"copies_sent", tally.copies_sent},
          {"copies_found", tally.copies_found},
          {"bytes_sent", tally.bytes_sent},
          {"bytes_sent_found", tally.bytes_sent_found}};
}

std::string TallyText(const LoadReport& report, const HolderTally& total) {
  Table table(
      {{"HOLDER"}, {report.dry_run ? "TO SEND" : "SENT", true}, {"FOUND", true}, {"ROWS", true}});
  const auto add = [&table](const std::string& name, const HolderTally& tally) {
    table.AddRow({name, std::to_string(tally.copies_sent), std::to_string(tally.copies_found),
                  FormatBytes(tally.bytes_sent)});
  };
  for (const auto& [name, tally] : report.tallies) add(name, tally);
  add("total", total);
  std::string text = table.Render();
  if (total.bytes_sent_found > 0) {
    text += absl::StrFormat(
        "%s of it was for copies that another load put at the same time: rows are sent until the "
        "holder reports that it has them\n",
        FormatBytes(total.bytes_sent_found));
  }
  if (report.dry_run) text += "a dry run: nothing was put or published\n";
  return text;
}

std::string ChunksText(const LoadReport& report, size_t count) {
  const std::string holders = FormatCount(report.replicas, "holder");
  if (!report.chunk_begin)
    return absl::StrFormat("%s, each on %s", FormatCount(count, "chunk"), holders);
  return absl::StrFormat("%d appended to %d, each on %s; %d were there", report.appended,
                         *report.chunk_begin, holders, count - report.appended);
}

}  // namespace

absl::StatusOr<std::vector<bool>> FindShared(Fleet& fleet, const std::string& corpus,
                                             const ChunkSource& source, const Corpus* previous) {
  const absl::flat_hash_set<ChunkId> reused = IdsOf(previous);
  std::vector<bool> shared(source.chunks().size());
  for (size_t i = 0; i < shared.size(); ++i) {
    if (reused.contains(source.chunks()[i].id)) continue;
    CKV_ASSIGN_OR_RETURN(const v1::LocateChunkReply reply, fleet.Locate(source.chunks()[i].id));
    shared[i] = std::any_of(reply.places().begin(), reply.places().end(),
                            [&](const auto& place) { return place.corpus() != corpus; });
  }
  return shared;
}

ChunkOrigins CountOrigins(const ChunkSource& source, const Corpus* previous,
                          const std::vector<bool>& shared, const std::vector<bool>& found) {
  const absl::flat_hash_set<ChunkId> reused = IdsOf(previous);
  ChunkOrigins origins;
  for (size_t i = 0; i < shared.size(); ++i) {
    if (reused.contains(source.chunks()[i].id)) {
      ++origins.chunks_reused;
    } else if (shared[i]) {
      ++origins.chunks_shared;
    } else {
      ++(found[i] ? origins.chunks_reused : origins.chunks_new);
    }
  }
  return origins;
}

void PrintReport(const Ctl& ctl, const ChunkSource& source, const LoadReport& report) {
  Json holders = Json::array();
  for (const auto& [name, tally] : report.tallies) {
    Json holder = {{"id", name}};
    holder.update(TallyJson(tally));
    holders.push_back(std::move(holder));
  }
  const HolderTally total = Sum(report.tallies);
  const ChunkOrigins& origins = report.origins;
  const std::string text = RenderFields(
      {{"corpus", report.dry_run ? report.corpus
                                 : absl::StrFormat("%s version %d", report.corpus, report.version)},
       {"geometry", source.geometry().ToString()},
       {"chunks", ChunksText(report, source.chunks().size())},
       {"of them",
        absl::StrFormat("%d new, %d shared with other corpora, %d reused", origins.chunks_new,
                        origins.chunks_shared, origins.chunks_reused)},
       {"tokens", std::to_string(source.token_count())},
       {"rows", FormatBytes(source.row_bytes())},
       {"took", FormatDuration(report.elapsed)}});
  Json json = {{"corpus", report.corpus},
               {"version", report.version},
               {"dry_run", report.dry_run},
               {"model", source.geometry().model},
               {"revision", source.geometry().revision},
               {"chunk_count", source.chunks().size()},
               {"chunks_new", origins.chunks_new},
               {"chunks_shared", origins.chunks_shared},
               {"chunks_reused", origins.chunks_reused},
               {"token_count", source.token_count()},
               {"total_row_bytes", source.row_bytes()},
               {"replicas", report.replicas}};
  if (report.chunk_begin) {
    json["chunk_begin"] = *report.chunk_begin;
    json["chunks_appended"] = report.appended;
  }
  json.update(TallyJson(total));
  json["seconds"] = static_cast<double>(report.elapsed.count()) / 1e9;
  json["holders"] = holders;
  ctl.Print(text + "\n" + TallyText(report, total), json);
}

}  // namespace ckv::ctl
