// ckvctl corpus show; the others are in files of their own.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/policy_options.h"
#include "client/tools/ctl/fleet/places.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// How long ago the corpus was published. The JSON of corpus list has the same keys.
struct Age {
  std::string text = "-";  // "> 5 h" of one that is older than the directory's process
  Json json = Json::object();
};

Age AgeOf(Fleet& fleet, const Corpus& corpus) {
  const auto reported = [](uint64_t ms) {
    return FormatAge(std::chrono::milliseconds(std::min(ms, uint64_t{1} << 40)));
  };
  const absl::StatusOr<v1::ListCorporaReply> listed = fleet.ListCorpora();
  if (!listed.ok()) return {};
  for (const v1::CorpusSummary& summary : listed->corpora()) {
    if (summary.name() != corpus.name || summary.tenant() != corpus.tenant) continue;
    if (!summary.has_published_ago_ms()) break;
    return {reported(summary.published_ago_ms()), {{"age_ms", summary.published_ago_ms()}}};
  }
  const absl::StatusOr<v1::DescribeDirectoryReply> home = fleet.DescribeDirectory();
  if (!home.ok()) return {};
  return {"> " + reported(home->started_ago_ms()), {{"age_ms_min", home->started_ago_ms()}}};
}

absl::Status RunShow(const Ctl& ctl, const std::string& name) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(name));
  const LiveNames live = QueryLiveNames(fleet);
  const Age age = AgeOf(fleet, corpus);
  const uint64_t token_count = corpus.token_count();
  Json json = {{"name", corpus.name},
               {"tenant", corpus.tenant},
               {"version", corpus.version},
               {"model", corpus.geometry.model},
               {"revision", corpus.geometry.revision},
               {"layers", corpus.geometry.layers},
               {"d_qk", corpus.geometry.d_qk},
               {"d_v", corpus.geometry.d_v},
               {"d_rope", corpus.geometry.d_rope},
               {"softmax_scale", ShortestDouble(corpus.geometry.softmax_scale)},
               {"token_count", token_count},
               {"total_row_bytes", token_count * corpus.geometry.token_bytes()},
               {"chunks", Json::array()}};
  json.update(age.json);
  json.update(PolicyJson(corpus.policy));
  Table table({{"ORDINAL", true},
               {"CHUNK"},
               {"POSITION", true},
               {"TOKENS", true},
               {"BYTES", true},
               {"HOLDERS"}});
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    const ChunkPlacement& chunk = corpus.chunks[i];
    const uint64_t bytes = chunk.token_count * corpus.geometry.token_bytes();
    table.AddRow({std::to_string(i), chunk.id.ShortHex(), std::to_string(chunk.position),
                  std::to_string(chunk.token_count), FormatBytes(bytes), PlacesText(chunk, live)});
    json["chunks"].push_back({{"ordinal", i},
                              {"id", chunk.id.ToHex()},
                              {"parent", chunk.parent().IsZero() ? "" : chunk.parent().ToHex()},
                              {"position", chunk.position},
                              {"token_count", chunk.token_count},
                              {"bytes", bytes}});
    AddPlaces(chunk, live, json["chunks"].back());
  }
  const std::string text =
      RenderFields({{"corpus", corpus.name},
                    {"tenant", corpus.tenant.empty() ? "-" : corpus.tenant},
                    {"version", std::to_string(corpus.version)},
                    {"age", age.text},
                    {"policy", PolicyText(corpus.policy, WallClockMilliseconds())},
                    {"geometry", corpus.geometry.ToString()},
                    {"tokens", std::to_string(token_count)},
                    {"rows", FormatBytes(token_count * corpus.geometry.token_bytes())}});
  ctl.Print(text + "\n" + table.Render(), json);
  return absl::OkStatus();
}

}  // namespace

void AddCorpusCommands(CLI::App& app, Ctl& ctl) {
  CLI::App* corpus =
      AddVerb(app, "corpus", "Load, export, list, show, roll back and drop corpora",
              "  ckvctl corpus load docs rows-0.safetensors rows-1.safetensors --replicas 2\n"
              "  ckvctl corpus list\n  ckvctl corpus show docs\n"
              "  ckvctl corpus export docs --out docs.safetensors\n  ckvctl corpus drop docs");
  corpus->require_subcommand(1);
  AddCorpusLoadCommand(*corpus, ctl);
  AddCorpusIngestCommand(*corpus, ctl);
  AddCorpusExportCommand(*corpus, ctl);
  AddPartitionCommand(*corpus, ctl);
  AddVerifyCommand(*corpus, ctl);

  AddCorpusListCommand(*corpus, ctl);

  const auto name = std::make_shared<std::string>();
  CLI::App* show =
      AddVerb(*corpus, "show", "Show a corpus and where its chunks are",
              "  ckvctl corpus show docs\n  ckvctl corpus show docs -o json | jq .chunks[0].id\n\n"
              "A '+' before a holder's name: it copied the chunk, and answers for it under its "
              "lease.\n'(gone)' behind one: it is not registered with the directory.");
  show->add_option("NAME", *name, "The corpus")->required();
  show->callback([&ctl, name] { ctl.run = [&ctl, name] { return RunShow(ctl, *name); }; });

  AddCorpusVersionCommands(*corpus, ctl);
  AddCorpusDropCommand(*corpus, ctl);
}

}  // namespace ckv::ctl
