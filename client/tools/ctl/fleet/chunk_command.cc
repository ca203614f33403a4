// ckvctl chunk locate, pin and unpin: which corpora have a chunk, who holds it, and keeping it in
// their stores; replicate and release are in replicate_command.cc.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/places.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

constexpr size_t kPrefixDigitsMin = 4;
constexpr Duration kMillisecond = std::chrono::milliseconds(1);

struct LocateOptions {
  std::string id;
  std::string corpus;
  std::optional<uint32_t> ordinal;
};

struct PinOptions {
  LocateOptions chunk;
  std::string time;  // if empty, for good
};

// The corpora to look for a prefix in: the named one, or all.
absl::StatusOr<std::vector<Corpus>> Candidates(Fleet& fleet, const std::string& name) {
  std::vector<Corpus> corpora;
  std::vector<std::string> names = {name};
  if (name.empty()) {
    CKV_ASSIGN_OR_RETURN(const v1::ListCorporaReply reply, fleet.ListCorpora());
    names.clear();
    for (const v1::CorpusSummary& summary : reply.corpora()) names.push_back(summary.name());
  }
  for (const std::string& one : names) {
    CKV_ASSIGN_OR_RETURN(Corpus corpus, fleet.GetCorpus(one));
    corpora.push_back(std::move(corpus));
  }
  return corpora;
}

absl::StatusOr<ChunkId> FindByPrefix(Fleet& fleet, const LocateOptions& options) {
  const bool digits = options.id.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!digits || options.id.size() < kPrefixDigitsMin || options.id.size() > 64) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "chunk '%s': need %d to 64 lower-case hex digits", options.id, kPrefixDigitsMin));
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<Corpus> corpora, Candidates(fleet, options.corpus));
  std::set<ChunkId> found;
  for (const Corpus& corpus : corpora) {
    for (const ChunkPlacement& chunk : corpus.chunks) {
      if (chunk.id.ToHex().compare(0, options.id.size(), options.id) == 0) found.insert(chunk.id);
    }
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "no chunk '%s...' in any corpus\n  ckvctl corpus show NAME lists a corpus's chunks",
        options.id));
  }
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' begins the ids of %d chunks: give more digits", options.id, found.size()));
  }
  return *found.begin();
}

absl::StatusOr<ChunkId> FindByOrdinal(Fleet& fleet, const LocateOptions& options) {
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  if (*options.ordinal >= corpus.chunks.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("--ordinal %d: corpus %s has %d chunks",
                                                      *options.ordinal, options.corpus,
                                                      corpus.chunks.size()));
  }
  return corpus.chunks[*options.ordinal].id;
}

absl::StatusOr<ChunkId> FindId(Fleet& fleet, const LocateOptions& options) {
  if (options.ordinal) {
    if (options.corpus.empty() || !options.id.empty()) {
      return absl::InvalidArgumentError("--ordinal needs --corpus, and no id");
    }
    return FindByOrdinal(fleet, options);
  }
  if (options.id.empty()) {
    return absl::InvalidArgumentError("name a chunk: an id, or --corpus C --ordinal N");
  }
  if (options.id.size() == 64) return ChunkId::FromHex(options.id);
  return FindByPrefix(fleet, options);
}

absl::Status RunLocate(const Ctl& ctl, const LocateOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const ChunkId id, FindId(fleet, options));
  CKV_ASSIGN_OR_RETURN(const v1::LocateChunkReply reply, fleet.Locate(id));
  if (reply.places_size() == 0) {
    return absl::NotFoundError(absl::StrFormat(
        "no corpus has chunk %s\n  ckvctl corpus show NAME lists a corpus's chunks", id.ToHex()));
  }
  const LiveNames live = QueryLiveNames(fleet);
  Json json = {{"id", id.ToHex()}, {"places", Json::array()}};
  Table table({{"CORPUS"}, {"ORDINAL", true}, {"POSITION", true}, {"TOKENS", true}, {"HOLDERS"}});
  for (const v1::LocateChunkReply::Place& place : reply.places()) {
    CKV_ASSIGN_OR_RETURN(const ChunkPlacement chunk, FromProto(place.chunk()));
    table.AddRow({place.corpus(), std::to_string(place.ordinal()), std::to_string(chunk.position),
                  std::to_string(chunk.token_count), PlacesText(chunk, live)});
    json["places"].push_back({{"corpus", place.corpus()},
                              {"ordinal", place.ordinal()},
                              {"position", chunk.position},
                              {"token_count", chunk.token_count}});
    AddPlaces(chunk, live, json["places"].back());
  }
  ctl.Print("chunk " + id.ToHex() + "\n\n" + table.Render(), json);
  return absl::OkStatus();
}

// The live holders of a chunk, leased ones too.
absl::StatusOr<std::vector<Member>> HoldersOf(Fleet& fleet, const ChunkId& id) {
  CKV_ASSIGN_OR_RETURN(const v1::LocateChunkReply reply, fleet.Locate(id));
  std::set<std::string> names;
  for (const v1::LocateChunkReply::Place& place : reply.places()) {
    names.insert(place.chunk().holders().begin(), place.chunk().holders().end());
    names.insert(place.chunk().leased().begin(), place.chunk().leased().end());
  }
  CKV_ASSIGN_OR_RETURN(std::vector<Member> members, fleet.Holders());
  std::erase_if(members, [&](const Member& member) { return !names.contains(member.id.name); });
  if (!members.empty()) return members;
  return absl::NotFoundError(
      absl::StrFormat("no live holder has chunk %s\n  ckvctl chunk locate %s shows who should",
                      id.ToHex(), id.ToHex()));
}

absl::Status RunPin(const Ctl& ctl, const PinOptions& options, bool unpin) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const ChunkId id, FindId(fleet, options.chunk));
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> holders, HoldersOf(fleet, id));
  v1::PinChunkRequest request;
  request.set_id(std::string(id.AsBytes()));
  request.set_unpin(unpin);
  const Duration time = TimeSpanOf(options.time);
  if (!options.time.empty()) {
    if (time <= Duration(0)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--for %s: must be longer than 0\n  leave --for out to pin it until ckvctl chunk "
          "unpin",
          options.time));
    }
    // 0 would be for good.
    request.set_ttl_ms(std::max<uint64_t>(1, static_cast<uint64_t>(time / kMillisecond)));
  }
  std::string names;
  Json json = {{"id", id.ToHex()},
               {"pinned", !unpin},
               {"time_ms", request.ttl_ms()},
               {"holders", Json::array()}};
  for (const Member& holder : holders) {
    grpc::ClientContext context;
    fleet.Prepare(context);
    v1::PinChunkReply reply;
    CKV_RETURN_IF_ERROR(HolderError(ConnectHolder(holder)->PinChunk(&context, request, &reply),
                                    holder, "PinChunk"));
    names += (names.empty() ? "" : ",") + holder.id.name;
    json["holders"].push_back(holder.id.name);
  }
  const std::string until = options.time.empty() ? "" : " for " + options.time;
  ctl.Print(absl::StrFormat("chunk %s is %s on %s\n", id.ToHex(),
                            unpin ? "pinned no more" : "pinned" + until, names),
            json);
  return absl::OkStatus();
}

void AddChunkOptions(CLI::App& verb, LocateOptions& options) {
  verb.add_option("ID", options.id, "The chunk's id, or the first 4 or more of its digits");
  verb.add_option("--corpus", options.corpus, "Look in this corpus only")->type_name("NAME");
  verb.add_option("--ordinal", options.ordinal, "The chunk with this ordinal in --corpus")
      ->check(WholeNumber());
}

void AddPinCommands(CLI::App& chunk, Ctl& ctl) {
  const auto options = std::make_shared<PinOptions>();
  CLI::App* pin = AddVerb(
      chunk, "pin", "Keep a chunk in its holders' memory once it is read, and from ckvctl gc",
      "  ckvctl chunk pin --corpus docs --ordinal 0 --for 1h\n"
      "  ckvctl chunk pin 3fa9c2d1\n\n"
      "A holder with a folder remembers it over a restart. The last of several pins\n"
      "holds. Dropping the chunk, or its last corpus, ends it.");
  AddChunkOptions(*pin, options->chunk);
  pin->add_option("--for", options->time, "How long (default: until it is unpinned)")
      ->check(TimeSpan())
      ->type_name("TIME");
  pin->callback([&ctl, options] {
    ctl.run = [&ctl, options] { return RunPin(ctl, *options, /*unpin=*/false); };
  });
  CLI::App* unpin =
      AddVerb(chunk, "unpin", "End what ckvctl chunk pin began: the chunk may leave memory again",
              "  ckvctl chunk unpin 3fa9c2d1");
  AddChunkOptions(*unpin, options->chunk);
  unpin->callback([&ctl, options] {
    ctl.run = [&ctl, options] { return RunPin(ctl, *options, /*unpin=*/true); };
  });
}

}  // namespace

void AddChunkCommands(CLI::App& app, Ctl& ctl) {
  CLI::App* chunk = AddVerb(app, "chunk", "Find, pin and copy chunks",
                            "  ckvctl chunk locate --corpus docs --ordinal 3\n"
                            "  ckvctl chunk find prompt.txt --text\n"
                            "  ckvctl chunk replicate docs --at 10.0.0.7:7311");
  chunk->require_subcommand(1);
  AddReplicateCommands(*chunk, ctl);
  AddChunkFindCommand(*chunk, ctl);
  AddPinCommands(*chunk, ctl);
  const auto options = std::make_shared<LocateOptions>();
  CLI::App* locate = AddVerb(*chunk, "locate", "Show which corpora have a chunk, and who holds it",
                             "  ckvctl chunk locate 3fa9c2d1\n"
                             "  ckvctl chunk locate --corpus docs --ordinal 3 -o json");
  AddChunkOptions(*locate, *options);
  locate->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunLocate(ctl, *options); }; });
}

}  // namespace ckv::ctl
